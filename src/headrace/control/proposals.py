"""What batching and chaining would do now: a change of settings with its sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from headrace.control.chaining import CEILING, SPLIT, Chain, chain_of, chained_edges, partition, primary_chains
from headrace.control.constraints import Path, edge_in_words
from headrace.control.decisions import Action, Decision, Expectation
from headrace.control.flushing.batching import lowest, next_deadline_ms, step_latencies, targets_ms, yielding_share
from headrace.control.flushing.buffersizes import next_size_bytes
from headrace.control.policy import SettingsChange
from headrace.control.standing import Standing, budget
from headrace.control.view import View
from headrace.measure.moments import mean_of
from headrace.measure.report import ChannelId, SubtaskId

_MIN_STEP = 0.02
"""Changes of a deadline below this share of its target are noise."""


@dataclass(frozen=True, slots=True)
class Proposal:
    decision: Decision
    change: SettingsChange = field(default_factory=SettingsChange)


def hold(view: View, subject: str, reason: str, action: Action = "hold", **evidence: float) -> Proposal:
    return Proposal(Decision(view.at_s, action, subject, "", reason, evidence))


def propose_deadlines(view: View) -> Iterator[Proposal]:
    """Adaptive output batching by deadlines, for all constraints at once; the lowest wins."""
    wishes: list[dict[ChannelId, float]] = []
    for standing in view.standings:
        for path, crowding_ms in zip(standing.constraint.paths, standing.crowding_ms):
            wish = _targets(view, path, standing.mean_bound_ms, crowding_ms)
            if wish is None:
                yield hold(view, f"batching of {standing.constraint.name}", _missing(standing))
            else:
                wishes.append(wish)
    targets = lowest(wishes)
    for edge in sorted({channel.edge for channel in targets}):
        mine = {channel: target for channel, target in targets.items() if channel.edge == edge}
        yield from _edge_deadlines(view, edge, mine)


def _targets(
    view: View, path: Path, bound_ms: float | None, crowding_ms: float | None
) -> dict[ChannelId, float] | None:
    latencies = step_latencies(path, view.topology, view.summary)
    split = None if bound_ms is None else budget(path, view.summary, bound_ms, view.job.policy.batching_share)
    if latencies is None or split is None:
        return None
    share = yielding_share(split.batching_share, split.channels_ms, crowding_ms)
    return targets_ms(path, view.topology, latencies, split.bound_ms, share=share, chained=view.settings.chained)


def _missing(standing: Standing) -> str:
    names = ", ".join(str(element) for element in standing.missing) or "a step's latency"
    return f"there is no measurement of {names}"


def _edge_deadlines(view: View, edge: int, targets: dict[ChannelId, float]) -> Iterator[Proposal]:
    deadlines: dict[ChannelId, float] = {}
    for channels in _buffers(view, edge, targets):
        wait_ms = _wait_ms(view, channels)
        if wait_ms is None:
            continue
        target, now_ms = min(targets[c] for c in channels), min(view.settings.deadline_ms(c) for c in channels)
        next_ms = next_deadline_ms(now_ms, target, wait_ms)
        if abs(next_ms - now_ms) > _MIN_STEP * max(target, 1e-3):
            deadlines |= dict.fromkeys(channels, next_ms)
    if not deadlines:
        return
    target_ms = mean_of(targets[channel] for channel in deadlines) or 0.0
    before_ms = mean_of(view.settings.deadline_ms(channel) for channel in deadlines) or 0.0
    wait_ms = view.summary.edge(edge).wait_ms or 0.0
    after_ms = mean_of(deadlines.values()) or 0.0
    decision = Decision(
        view.at_s,
        "batch",
        edge_in_words(view.topology.by_id[edge]),
        f"deadline {before_ms:.3g} → {after_ms:.3g} ms on {len(deadlines)} channels",
        f"a wait of {target_ms:.3g} ms fits the bound",
        {"wait_ms": wait_ms, "target_ms": target_ms},
        Expectation("wait_ms", edge, wait_ms, target_ms, view.cycle + 1),
    )
    yield Proposal(decision, SettingsChange(deadlines_ms=deadlines))


def _buffers(view: View, edge: int, targets: Mapping[ChannelId, float]) -> Iterable[tuple[ChannelId, ...]]:
    """The channels that share a buffer, and so a deadline."""
    if not view.topology.by_id[edge].common:
        return [(channel,) for channel in targets]
    senders = sorted({channel.sender for channel in targets})
    return [tuple(c for c in targets if c.sender == sender) for sender in senders]


def _wait_ms(view: View, channels: Iterable[ChannelId]) -> float | None:
    """An item's mean wait in the buffer of these channels, as far as it is known."""
    reports = [report for channel in channels if (report := view.channel(channel)) is not None]
    waits = [(report.items, report.wait_ms.mean) for report in reports if report.wait_ms is not None]
    items = sum(n for n, _ in waits)
    return sum(n * wait_ms for n, wait_ms in waits) / items if items else None


def propose_sizes(view: View, too_large: Mapping[ChannelId, int]) -> Iterator[Proposal]:
    """Adaptive buffer sizing, for violated constraints only (HPDC'12)."""
    for standing in view.standings:
        if standing.met is None:
            yield hold(view, f"sizing of {standing.constraint.name}", _missing(standing))
        if standing.met is not False:
            continue
        sizes: dict[ChannelId, int] = {}
        for edge in sorted(standing.constraint.edges - view.settings.chained):
            for channel in view.topology.channels(edge):
                size = view.settings.sizes_bytes.get(channel, view.job.policy.sizes.max_bytes)
                wanted = _wanted_size(view, channel, size, too_large.get(channel))
                if wanted is not None and wanted != size:
                    sizes[channel] = wanted
        if sizes:
            yield _sizes_proposal(view, standing, sizes)


def _wanted_size(view: View, channel: ChannelId, size_bytes: int, too_large_bytes: int | None) -> int | None:
    report = view.channel(channel)
    if report is None or report.lifetime_ms is None:
        return None
    sender = view.summary.subtasks.get(SubtaskId(view.topology.by_id[channel.edge].source, channel.sender))
    sender_ms = sender.latency_ms.mean if sender is not None and sender.latency_ms is not None else None
    limits = view.job.policy.sizes
    return next_size_bytes(size_bytes, report.lifetime_ms.mean, sender_ms, limits, too_large_bytes=too_large_bytes)


def _sizes_proposal(view: View, standing: Standing, sizes: dict[ChannelId, int]) -> Proposal:
    decision = Decision(
        view.at_s,
        "resize",
        standing.constraint.name,
        f"{len(sizes)} buffers to {min(sizes.values())} to {max(sizes.values())} bytes",
        f"the bound of {standing.constraint.bound_ms:g} ms is violated",
        {"observed_ms": standing.observed_ms or 0.0},
    )
    return Proposal(decision, SettingsChange(sizes_bytes=sizes))


def propose_chains(view: View) -> Iterator[Proposal]:
    """Dynamic task chaining: fewer chains where they fit, more where one got too busy.

    Ours: chains stay until one is too busy or a split into fewer fits; otherwise noise in the measured
    utilisations would move the split points to and fro.
    """
    pinned = frozenset(edge for edge, chained in view.job.overrides.chained.items() if not chained)
    paths = [path for standing in view.standings for path in standing.constraint.paths]
    found = dict.fromkeys(chain for path in paths for chain in primary_chains(path, view.topology, apart=pinned))
    for steps in (chain for chain in found if not any(set(chain) < set(other) for other in found)):
        loads = [view.summary.step(step).peak_utilisation for step in steps]
        known = [load for load in loads if load is not None]
        if len(known) < len(loads) or view.silent(steps):
            yield hold(view, f"chaining of {' → '.join(steps)}", "not all of its subtasks have reported")
            continue
        wanted = partition(steps, known)
        now = tuple(dict.fromkeys(chain_of(step, view.settings.chained, view.topology) for step in steps))
        busiest = max(sum(dict(zip(steps, known)).get(step, 0.0) for step in chain) for chain in now)
        if wanted != now and (busiest > SPLIT or len(wanted) < len(now)):
            yield _chains_proposal(view, steps, wanted, busiest)


def _chains_proposal(view: View, steps: Chain, wanted: tuple[Chain, ...], busiest: float) -> Proposal:
    inside = frozenset(e.id for e in view.topology.edges if e.source in steps and e.target in steps)
    joined = chained_edges(wanted, view.topology)
    decision = Decision(
        view.at_s,
        "chain",
        " → ".join(steps),
        " ".join(f"[{' '.join(chain)}]" for chain in wanted),
        f"no chain then uses more than {CEILING:.0%} of a core",
        {"busiest": busiest},
    )
    return Proposal(decision, SettingsChange(joined=joined, parted=inside - joined))
