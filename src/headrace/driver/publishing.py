"""What follows a commit: publish what sinks staged, discard what failed attempts left."""

from __future__ import annotations

from headrace.connect.sink import Sink
from headrace.connect.writing.staging import discard_staging
from headrace.graph.nodes import SinkNode
from headrace.runtime.plan import JobPlan
from headrace.state.durable.versions import Manifest, Versions
from headrace.tokens import Token


def sinks_of(plan: JobPlan) -> dict[str, Sink]:
    """All sinks by step, the dead-letter sink included."""
    sinks: dict[str, Sink] = {node.name: node.sink for node in plan.graph.nodes if isinstance(node, SinkNode)}
    return sinks | plan.graph.letter_sinks


def publish(plan: JobPlan, manifest: Manifest) -> None:
    """Make the rows of a picked attempt visible; repeating it changes nothing."""
    for step, sink in sinks_of(plan).items():
        sink.publish(manifest.token, [staged for staged in manifest.staged if staged.step == step])


def recover(plan: JobPlan, versions: Versions, generation: int, last_committed: int | None) -> None:
    """Finish what a driver before us had committed, and clear away what it had not.

    More than one epoch may have been committed since the last pick, and the last pick may not have
    been published.
    """
    if last_committed is not None:
        last = versions.last_picked()
        for epoch in range(last.epoch if last is not None else 0, last_committed + 1):
            picked = versions.pick(epoch, None)
            if picked is not None:
                publish(plan, versions.manifest(picked))
    discard_failed(plan, versions, generation)


def discard_failed(plan: JobPlan, versions: Versions, generation: int) -> None:
    """Remove what attempts of earlier drivers left that were never picked."""
    picked = {*versions.picks()}

    def keep(token: Token) -> bool:
        return token in picked or token.generation >= generation

    for sink in sinks_of(plan).values():
        sink.discard(keep)
        discard_staging(sink.staging_root(plan.checkpoint), keep)
