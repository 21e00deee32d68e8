"""What Spark calls in a Python worker: one stage of one batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import psutil
import pyarrow as pa
from pyspark import TaskContext

from headrace.channel.client import ChannelClient
from headrace.channel.keeping.starting import own_node
from headrace.channel.keys import Address
from headrace.runtime.attempt import Cache, run_attempt
from headrace.runtime.messages import Failed
from headrace.runtime.plan import JobPlan
from headrace.spark.watchdog import Watchdog

_cache, _watchdog = Cache(), Watchdog()
_clients: dict[str, ChannelClient] = {}
_LEASES = 3
"""The driver's signs of life come from a thread among others: it may be slow for some leases without being gone."""


@dataclass(frozen=True)
class StageTask:
    """The function given to ``mapInArrow``. ``batch`` is None where Spark tells it to the task."""

    plan: JobPlan
    stage: int
    query: int
    address: Address
    batch: int | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        batch = self.batch if self.batch is not None else int(context.getLocalProperty("streaming.sql.batchId") or 0)
        index = context.partitionId()
        channel = _client(self.address, _LEASES * self.plan.settings.lease_s)
        channel.begin(self.query)
        keeps = self.plan.eager and self.plan.settings.backup
        near = own_node(self.plan.checkpoint, self.address, os.getppid()) if keeps else None
        try:
            yield from run_attempt(
                self.plan,
                self.stage,
                index,
                batch,
                self.query,
                batches,
                channel,
                _cache,
                near,
                executor_id(os.getppid()),
            )
        except GeneratorExit:
            raise
        except Exception as error:
            channel.tell(Failed.of(error, self.query, (self.stage, index)))
            raise
        finally:
            _watchdog.rest()


def executor_id(daemon: int) -> str | None:
    """What Spark calls the executor that a Python daemon is of; None in local mode, or if nobody says.

    Spark tells tasks nothing of it, but starts the executor's process with it.
    """
    try:
        executor = psutil.Process(daemon).parent()
        started = executor.cmdline() if executor is not None else []
    except psutil.Error:
        return None
    return next((value for name, value in pairwise(started) if name == "--executor-id"), None)


def _client(address: Address, lease_s: float) -> ChannelClient:
    """One connection per worker process and driver."""
    client = _clients.get(address.endpoint)
    if client is None or client.pid != os.getpid():
        for other in _clients.values():
            if other.pid == os.getpid():
                other.close()
        _clients.clear()
        client = _clients[address.endpoint] = ChannelClient(address, lease_s=lease_s, on_poll=_watchdog.beat)
    return client
