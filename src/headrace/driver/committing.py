"""Sealed epochs on their way: picked and published once Spark's commit has landed."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from headrace.driver.publishing import publish
from headrace.driver.sparkcommits import committed
from headrace.runtime.plan import JobPlan
from headrace.state.durable.compaction import Compactor
from headrace.state.durable.versions import Manifest, Versions


class Committing:
    """``commits`` counts epochs, ``ended_s`` is when the last one was published, ``finished``: it was the last of all."""

    def __init__(self, plan: JobPlan, versions: Versions, spark_checkpoint: Path) -> None:
        self._plan, self._versions, self._spark_checkpoint = plan, versions, spark_checkpoint
        self._compactor = Compactor(versions)
        self._sealed: list[Manifest] = []
        self._list, self._one_at_a_time = threading.Lock(), threading.Lock()
        self.commits = 0
        self.ended_s = 0.0
        self.finished = False

    def take(self, manifest: Manifest) -> Manifest:
        """A sealed attempt; returns its manifest as it counts from here on, with what was compacted meanwhile."""
        base = self._compactor.replace(manifest)
        with self._list:
            self._sealed.append(base)
        return base

    def forget(self) -> None:
        """What was sealed, but not committed before its query ended, is void: its epoch is run again."""
        with self._list:
            self._sealed.clear()

    @property
    def waiting(self) -> bool:
        return bool(self._sealed)

    @property
    def ending(self) -> bool:
        """Whether only the commit of the last epoch is still to come."""
        with self._list:
            return any(manifest.finished for manifest in self._sealed)

    def advance(self) -> None:
        """Pick and publish what Spark has committed."""
        with self._one_at_a_time:
            while self._sealed and self._landed(self._sealed[0].token.epoch):
                with self._list:
                    manifest = self._sealed.pop(0)
                self._commit(manifest)

    def _landed(self, epoch: int) -> bool:
        return self._plan.settings.mode == "batch" or committed(self._spark_checkpoint, epoch)

    def _commit(self, manifest: Manifest) -> None:
        epoch = manifest.token.epoch
        picked = self._versions.pick(epoch, manifest.token)
        if picked is None:
            return
        publish(self._plan, manifest if picked == manifest.token else self._versions.manifest(picked))
        self.commits += 1
        self.ended_s = time.monotonic()
        self.finished = self.finished or manifest.finished
        self._compactor.tidy(running_epoch=epoch + 1)

    def close(self) -> None:
        self._compactor.close()
