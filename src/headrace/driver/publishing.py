"""What the driver does with sinks: claims them, publishes what is logged, clears away what never was.

A driver that starts calls these in this order, after its OPEN entry: `claim_sinks`, `publish` for each logged cut that
is not known as published, `discard_unlogged`, `settle`. The last two come again between attempts and at the end.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from headrace.connect.sink import Keep, Sink
from headrace.connect.writing.notes import check_directory
from headrace.connect.writing.staging import discard_staging
from headrace.errors import ConfigError, HeadraceError, RunFailedError
from headrace.graph.nodes import SinkNode
from headrace.runtime.plan import JobPlan
from headrace.state.durable.manifest import Manifest
from headrace.state.durable.storage import Storage

_OWNER = "owner"


def sinks_of(plan: JobPlan) -> dict[str, Sink]:
    """All sinks by step, the dead-letter sink included."""
    sinks: dict[str, Sink] = {node.name: node.sink for node in plan.graph.nodes if isinstance(node, SinkNode)}
    return sinks | plan.graph.letter_sinks


def claim_sinks(plan: JobPlan, storage: Storage) -> None:
    """Take all sinks for this checkpoint; ConfigError, before any work is done, if one has results of another."""
    storage.put_if_absent(_OWNER, uuid.uuid4().hex.encode())
    checkpoint = storage.get(_OWNER).decode()
    for step, sink in sinks_of(plan).items():
        sink.claim(f"{step} of {checkpoint}")


def check_sinks(plan: JobPlan, storage: Storage) -> None:
    """Whether a start would be refused for what is in sinks' directories; changes nothing, so it may come at any time."""
    try:
        checkpoint = storage.get(_OWNER).decode()
    except FileNotFoundError:
        checkpoint = None
    writers: dict[Path, str] = {}
    for step, sink in sinks_of(plan).items():
        if isinstance(directory := getattr(sink, "directory", None), Path):
            if (other := writers.setdefault(directory, step)) != step:
                raise ConfigError(
                    f"sinks {other!r} and {step!r} both write to {directory}; give each a directory of its own"
                )
            check_directory(directory, f"{step} of {checkpoint}" if checkpoint is not None else None)


def publish(plan: JobPlan, manifest: Manifest) -> None:
    """Make the rows of a logged cut visible, sink after sink; repeating it changes nothing.

    Sinks are told of cuts without rows too: that is when they publish what has waited long enough. What was staged for
    a sink that the job no longer has stays unpublished.
    """
    for step, sink in sinks_of(plan).items():
        try:
            sink.publish(manifest.token, [staged for staged in manifest.staged if staged.step == step])
        except HeadraceError:
            raise
        except Exception as error:  # a sink is anybody's code
            version = manifest.token.cut
            raise RunFailedError(f"sink {step!r}, version {version}: {type(error).__name__}: {error}") from error


def settle(plan: JobPlan) -> None:
    """No attempt runs: what sinks still collect into larger files becomes visible. One that fails keeps no other from it."""
    failure: Exception | None = None
    for sink in sinks_of(plan).values():
        try:
            sink.settle()
        except Exception as error:  # a sink is anybody's code
            failure = failure or error
    if failure is not None:
        raise failure


def discard_unlogged(plan: JobPlan, keep: Keep) -> None:
    """Remove what cuts left that were never logged; ``keep`` is true of logged cuts and of all of a running attempt."""
    for sink in sinks_of(plan).values():
        sink.discard(keep)
        discard_staging(sink.staging_root(plan.checkpoint), keep)
