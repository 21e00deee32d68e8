"""What has become different since a checkpoint was made, in sentences: what is refused, and what is only worth knowing.

State is found by a step's name. So a step may be added, and may be left out: then its state stays where it is, unread.
It may not come back after the job has gone on without it, since it would have missed records; and a step that looks
like one that has just been left out is taken for that one under another name, not for a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from headrace.driver.identity.steps import (
    BOUND,
    COMBINING,
    MEMORY,
    MR,
    NO_BOUND,
    WAITING,
    Columns,
    Identity,
    Retired,
    Side,
    Step,
)

_ANEW = "start with a new checkpoint"
_BACK = f"set it back, or {_ANEW}"
_AFRESH = "set it back, or give the step another name, under which it starts without state"


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference and what to do about it; one that is not ``refused`` is told and goes into the identity."""

    what: str
    remedy: str = ""
    refused: bool = True

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


def differences(
    known: Identity, now: Identity, entry: int, unsettled: Callable[[str], bool] = lambda directory: False
) -> tuple[Difference, ...]:
    """What is different now. ``entry`` is the number of the newest cut in the version log, 0 if there is none.
    ``unsettled`` says of a sink's directory whether it has rows that are not published yet.

    Before the first cut there is no state, and only the job has to be the same: somebody else may be about to start.
    """
    if known.job != now.job:
        what = f"it belongs to job {known.job!r}, and this is job {now.job!r}"
        return (Difference(what, f"call the job {known.job!r} again, or give it a checkpoint of its own"),)
    if not entry:
        return ()
    return *_of_job(known, now), *_of_steps(known, now, entry), *_of_sinks(known, now, unsettled)


def grown(known: Identity, now: Identity, entry: int) -> Identity:
    """The identity to be stored: what the job is now, and what its checkpoint still has of steps that it had."""
    if not entry:
        return now
    left = {name: Retired(step, entry) for name, step in known.steps.items() if step.stateful}
    retired = {name: was for name, was in (known.retired | left).items() if name not in now.steps}
    steps = {name: _carried(known.known(name), step) for name, step in now.steps.items()}
    return msgspec.structs.replace(now, steps=steps, retired=retired)


def _carried(known: Step | None, now: Step) -> Step:
    """A step with what is no longer to be seen of it, but lies in its state.

    A state that a process step no longer declares must not be taken for another of its name; and panes have the columns
    of the steps they feed in the order of old.
    """
    if known is None or known.kind != now.kind:
        return now
    readers = sorted(now.readers, key=lambda reader: known.readers.index(reader) if reader in known.readers else -1)
    return msgspec.structs.replace(now, states=known.states | now.states, readers=tuple(readers))


def _of_job(known: Identity, now: Identity) -> Iterator[Difference]:
    if known.slices != now.slices:
        what = f"its keys are divided into slices={known.slices}, and the job has slices={now.slices} now"
        yield Difference(what, f"set slices={known.slices}, or {_ANEW}")
    if (known.hashing, known.format) != (now.hashing, now.format):
        wrote, reads = (f"format {one.format}, hashing {one.hashing}" for one in (known, now))
        what = f"another version of Headrace wrote it ({wrote}; this one reads {reads})"
        yield Difference(what, f"go on with that version, or {_ANEW}")


def _of_steps(known: Identity, now: Identity, entry: int) -> Iterator[Difference]:
    changed = {name: tuple(_of_step(name, known, now, entry)) for name in now.steps}
    for name, found in changed.items():
        if now.steps[name].kind != "panes":
            yield from found
    yield from _of_twins(known, now)
    for name, step in known.steps.items():
        if step.kind == "panes":
            if not any(found.refused for reader in step.readers for found in changed.get(reader, ())):
                yield from _of_panes(name, step, now, changed.get(name, ()))
        elif name not in now.steps and step.stateful:
            yield _left_out(name, step, known, now)


def _of_step(name: str, known: Identity, now: Identity, entry: int) -> Iterator[Difference]:
    step, then = now.steps[name], known.known(name)
    if then is None:
        return
    if then.kind != step.kind:
        if then.stateful:
            what = f"step {name!r} was of kind {then.kind}, and is of kind {step.kind} now"
            yield Difference(what, _BACK if then.kind == "source" else _AFRESH)
        return
    retired = known.retired.get(name)
    if retired is not None and retired.entry != entry and then.kind != "source":
        what = f"step {name!r} was left out of the job for a time, so its state lacks the records since then"
        yield Difference(what, "give the step another name, under which it starts without state")
        return
    remedy = _BACK if step.kind == "source" or _shares(name, known) else _AFRESH
    for what in (*_of_facts(then, step), *_of_columns(then, step)):
        yield Difference(f"step {name!r}: {what}", remedy)
    yield from _of_states(name, then, step)
    yield from _of_types(name, then, step)
    if then.reads != step.reads:
        what = f"source {name!r} now reads {step.reads}, and goes on from where it was in {then.reads}"
        yield Difference(what, refused=False)


def _of_sinks(known: Identity, now: Identity, unsettled: Callable[[str], bool]) -> Iterator[Difference]:
    """A sink may write elsewhere, but rows of logged cuts become visible only where they were written."""
    for name, after in now.sinks.items():
        before = known.sinks.get(name, after)
        if before == after:
            continue
        if unsettled(before):
            what = f"sink {name!r} wrote to {before}, where rows are not published yet, and writes to {after} now"
            yield Difference(what, f"run the job once more with {before} until it is stopped, then change it")
        else:
            what = f"sink {name!r} wrote to {before}, where its rows so far stay, and goes on in {after}"
            yield Difference(what, refused=False)


def _of_types(name: str, then: Step, now: Step) -> Iterator[Difference]:
    """Columns that a step puts out as another type than before; who keeps such in its state says so itself."""
    before, after = then.types, now.types
    for column in before.keys() & after.keys():
        if before[column] != after[column]:
            what = f"step {name!r} puts out column {column!r} as {after[column]} now, and rows so far have {before[column]}"
            yield Difference(what, refused=False)


def _of_facts(then: Step, now: Step) -> Iterator[str]:
    for fact in dict.fromkeys((*then.facts, *now.facts)):
        before, after = then.facts.get(fact), now.facts.get(fact)
        if before == after or (fact == MEMORY and before == NO_BOUND and after in (BOUND, WAITING)):
            continue
        if before is None or after is None:
            if fact != COMBINING:  # then memory= or the window is another, which is said there
                yield f"{fact} is new: {after}" if before is None else f"{fact} was {before}, and is gone"
        elif fact == MEMORY and after == NO_BOUND and before != MR:
            yield "it had a memory bound, so part of its state is on disk, and has none now (it may be as large as you like)"
        else:
            yield f"{fact} was {before}, and is {after} now"
    if then.facts == now.facts and list(then.facts) != list(now.facts):
        yield f"its results were in the order {_order(then.facts)}, and are in the order {_order(now.facts)} now"


def _of_columns(then: Step, now: Step) -> Iterator[str]:
    for side in then.inputs.keys() & now.inputs.keys():
        yield from _of_side(side, then.inputs[side], now.inputs[side])


def _of_side(side: Side, then: Columns, now: Columns) -> Iterator[str]:
    whole = side != "used"
    where = f"its {side}, whose records it keeps," if whole else "its input"
    for name in dict.fromkeys((*then, *now)):
        if name in then and name in now:
            if then[name] != now[name]:
                yield f"column {name!r} of {where} was {then[name]}, and is {now[name]} now"
        elif whole:  # which columns are used is said by keys and results
            news = f"is gone (it was {then[name]})" if name in then else f"is new ({now[name]})"
            yield f"column {name!r} of {where} {news}"
    if whole and then == now and list(then) != list(now):
        yield f"the columns of {where} were in the order {', '.join(then)}, and are in the order {', '.join(now)} now"


def _of_states(name: str, then: Step, now: Step) -> Iterator[Difference]:
    for state, kind in then.states.items():
        if state not in now.states:
            yield Difference(
                f"step {name!r} no longer declares its state {state!r}, which stays, unread", refused=False
            )
        elif now.states[state] != kind:
            what = f"step {name!r}: its state {state!r} was a {kind}, and is a {now.states[state]} now"
            yield Difference(what, "set it back, or give the new state another name")


def _of_twins(known: Identity, now: Identity) -> Iterator[Difference]:
    """Steps that had their state in common with an equal one, and would now be on their own, or with another."""
    for name, twin in known.runs_as.items():
        home = name if name in now.steps else now.runs_as.get(name)
        if home is not None and home != twin and now.steps[home].stateful:
            what = f"step {name!r} ran as {twin!r}, which was the same, and would now start without state"
            yield Difference(what, "make them the same again, or give the step another name")


def _of_panes(name: str, then: Step, now: Identity, changed: tuple[Difference, ...]) -> Iterator[Difference]:
    """Records of panes that have not ended are in a table that several steps have in common."""
    steps = " and ".join(map(repr, then.readers))
    left = [reader for reader in then.readers if reader in now.steps]
    gone = [reader for reader in then.readers if reader not in now.steps]
    lost = f"steps {steps} share the panes that have not ended, and what {' and '.join(map(repr, left))} has in them"
    still = now.steps.get(name)
    if not left or (still is not None and not changed and {*left} <= {*still.readers}):
        return
    if gone:
        back = " and ".join(map(repr, gone))
        yield Difference(f"{lost} would be lost without {back}", f"put {back} back (a sink is not needed), or {_ANEW}")
    else:
        apart = "share=False, or an option such as memory=, emit= or combine= that only one of them has"
        yield Difference(f"{lost} would be lost as they no longer share them ({apart})", _BACK)


def _left_out(name: str, step: Step, known: Identity, now: Identity) -> Difference:
    twin = next((new for new, other in now.steps.items() if known.known(new) is None and _alike(step, other)), None)
    if step.kind == "source":
        if twin is None:
            return Difference(f"source {name!r} is left out; its position stays, should it come back", refused=False)
        what = f"source {name!r} seems to be called {twin!r} now, and would be read from its start once more"
        return Difference(what, f"call it {name!r} again, or {_ANEW}")
    if twin is None:
        return Difference(f"step {name!r} is left out; its state ({step.kind}) stays, unread", refused=False)
    what = f"step {name!r} seems to be called {twin!r} now, and would start without state"
    afresh = f"if that is what you want, run the job once without {twin!r}"
    return Difference(what, f"call it {name!r} again (name={name!r}); {afresh}")


def _alike(one: Step, other: Step) -> bool:
    return msgspec.structs.replace(one, columns=b"") == msgspec.structs.replace(other, columns=b"")


def _shares(name: str, known: Identity) -> bool:
    return any(name in readers for readers in known.sharing.panes.values())


def _order(facts: dict[str, str]) -> str:
    return ", ".join(fact.removeprefix("result ") for fact in facts if fact.startswith("result "))
