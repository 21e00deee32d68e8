"""Dynamic task chaining: which steps call each other directly (thesis, Algorithms 9-10).

Departures: if the whole series fits one core it is chained, where the thesis asks for a lower
variance of utilisations, which equal utilisations never have; and an edge the user pinned apart
(HPDC'12) ends every chain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import combinations, pairwise

from headrace.control.constraints import Path, steps_of
from headrace.control.topology import StepEdge, Topology

CEILING = 0.9
"""Utilisation of one core up to which steps may share it, so that the chain keeps room for bursts."""
SPLIT = 0.99
"""Utilisation from which a chain is split, as in the prototype: the room in between is for noise."""
_NOISE = 1e-9

Chain = tuple[str, ...]


def chainable(edge: StepEdge, topology: Topology) -> bool:
    """Whether the two steps of an edge may ever share a thread.

    The sender has no other output and the receiver no other input (the first of a chain may have many
    inputs, the last many outputs), and both have equally many subtasks, paired, on the same workers.
    """
    sender, receiver = topology.by_name[edge.source], topology.by_name[edge.target]
    return (
        edge.paired
        and not edge.fixed
        and not sender.source
        and sender.chain
        and receiver.chain
        and len(topology.out_of(sender.name)) == 1
        and len(topology.into(receiver.name)) == 1
        and sender.parallelism == receiver.parallelism
        and sender.workers == receiver.workers
    )


def primary_chains(path: Path, topology: Topology, *, apart: AbstractSet[int] = frozenset()) -> tuple[Chain, ...]:
    """The longest chainable series on a path, each of two or more steps; ``apart`` are pinned edges."""
    found: list[list[str]] = []
    for before, edge, after in zip(path, path[1:], path[2:]):
        if not isinstance(edge, int) or edge in apart or not chainable(topology.by_id[edge], topology):
            continue
        if found and found[-1][-1] == before:
            found[-1].append(str(after))
        else:
            found.append([str(before), str(after)])
    return tuple(tuple(chain) for chain in found)


def partition(chain: Chain, utilisations: Sequence[float], *, ceiling: float = CEILING) -> tuple[Chain, ...]:
    """Split a chainable series into the fewest chains of which none exceeds the ceiling.

    The first acceptable split, not the best: fewest chains first, then split points in order. The
    thesis counts n 2^(n-1) - n steps; series in real jobs are short.

    >>> partition(("a", "b", "c", "d"), (0.5, 0.2, 0.5, 0.2))
    (('a', 'b'), ('c', 'd'))
    """
    alone = _variance(utilisations)
    for chains in range(1, len(chain)):
        for flush in _breaks(len(chain), chains):
            loads = [math.fsum(utilisations[a:b]) for a, b in flush]
            if max(loads) <= ceiling + _NOISE and (chains == 1 or _variance(loads) < alone - _NOISE):
                return tuple(chain[a:b] for a, b in flush)
    return tuple((step,) for step in chain)


def _breaks(n: int, chains: int) -> Iterator[list[tuple[int, int]]]:
    for splits in combinations(range(1, n), chains - 1):
        yield list(pairwise((0, *splits, n)))


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / len(values)


def chained_edges(chains: Iterable[Chain], topology: Topology) -> frozenset[int]:
    """The edges inside chains: those that need no buffer."""
    pairs = {pair for chain in chains for pair in pairwise(chain)}
    return frozenset(edge.id for edge in topology.edges if (edge.source, edge.target) in pairs)


def chain_of(step: str, chained: AbstractSet[int], topology: Topology) -> Chain:
    """The steps that share a thread with this one, in order of flow; the step alone if it is not chained.

    Sources are left out: they serve no queue.
    """
    chain = [step]
    while before := [
        e.source for e in topology.into(chain[0]) if e.id in chained and not topology.by_name[e.source].source
    ]:
        chain.insert(0, before[0])
    while after := [e.target for e in topology.out_of(chain[-1]) if e.id in chained]:
        chain.append(after[0])
    return tuple(chain)


def chains_on(path: Path, chained: AbstractSet[int], topology: Topology) -> tuple[Chain, ...]:
    """The chains that a path runs through; each is one queue and one server."""
    return tuple(dict.fromkeys(chain_of(step, chained, topology) for step in steps_of(path)))
