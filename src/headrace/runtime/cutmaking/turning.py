"""Lookups turn to another edition of their table at a cut: all subtasks at the same one, as its mark says.

It is loaded before, by a thread, from when the driver asks whether all are ready for the cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from headrace.runtime.operators.lookups import Edition, LookupOperator
from headrace.runtime.operators.operator import Operator
from headrace.state.durable.editions import get_edition
from headrace.state.durable.storage import Storage

_Loading = dict[tuple[str, str], Future[Edition]]
"""By step and the edition's name."""


class Turning:
    """The lookups of one subtask; in most there are none."""

    def __init__(self, operators: Iterable[Operator]) -> None:
        self._lookups = {operator.name: operator for operator in operators if isinstance(operator, LookupOperator)}
        self._storage: Storage | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._loading: _Loading = {}

    def begin(self, storage: Storage, editions: Mapping[str, str]) -> None:
        """A new attempt, with the editions of the version that it starts from."""
        self._storage, self._loading = storage, {}
        self.turn_to(editions)

    def prepare(self, editions: Mapping[str, str]) -> None:
        """Load what a cut to come will turn to; what was loaded for another and is not wanted any more is forgotten."""
        wanted = {(name, edition) for name, edition in editions.items() if name in self._lookups}
        self._loading = {key: loading for key, loading in self._loading.items() if key in wanted}
        for name, edition in sorted(wanted - self._loading.keys()):
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="headrace-lookups")
            self._loading[name, edition] = self._pool.submit(self._load, name, edition)

    @property
    def ready(self) -> bool:
        """Whether all that was asked for is loaded, or cannot be, which the cut will find out."""
        return all(loading.done() for loading in self._loading.values())

    def turn_to(self, editions: Mapping[str, str]) -> None:
        """What comes from now on is looked up in these."""
        for name, edition in editions.items():
            lookup = self._lookups.get(name)
            if lookup is not None and lookup.edition != edition:
                loading = self._loading.get((name, edition))
                lookup.turn_to(edition, loading.result() if loading is not None else self._load(name, edition))
        self._loading = {}

    def close(self) -> None:
        """Nothing will be loaded any more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _load(self, name: str, edition: str) -> Edition:
        assert self._storage is not None, "an attempt has begun"
        return self._lookups[name].prepared(get_edition(self._storage, edition))
