"""``headrace state``: look into a checkpoint, without Spark and without changing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from headrace.cli import arguments
from headrace.cli.answers import FAILED, answering, messages
from headrace.units import in_words

if TYPE_CHECKING:
    from headrace.cli.checkpoints import SliceState

_FEW, _LONG = 8, 200
Verbose = Annotated[bool, typer.Option("--verbose", help="Show all of long lists and texts.")]

state = typer.Typer(help="Look into a checkpoint: versions, slices, sizes, offsets, integrity.", no_args_is_help=True)


@state.command()
def ls(
    checkpoint: arguments.Checkpoint,
    verbose: Verbose = False,
    json: arguments.Json = False,
    traceback: arguments.Traceback = False,
) -> None:
    """List the versions that a checkpoint has, oldest first. A job goes on from the last one."""
    with answering(as_json=json, traceback=traceback) as answer:
        from headrace.cli.checkpoints import open_checkpoint, versions_of

        versions = versions_of(open_checkpoint(checkpoint))
        answer |= {"checkpoint": str(checkpoint), "versions": versions}
        if json:
            return
        console = Console(highlight=False, soft_wrap=True)
        for version in versions:
            batch = f", batch {version['batch']} of Spark's" if version["batch"] is not None else ""
            ended = ", input ended" if version["exhausted"] else ""
            age = in_words(max(version["age_s"], 0.0))
            console.print(f"cut {version['cut']}  {version['version']}  {age} ago{batch}{ended}", style="bold")
            sizes = f"{version['bytes']:,} bytes, {version['rows']:,} rows in {version['blocks']:,} blocks"
            console.print(f"   {version['slices']:,} slices, {sizes}")
            _print_offsets(console, version["offsets"], verbose=verbose)
        if not versions:
            console.print("there is no version yet")


@state.command()
def show(
    checkpoint: arguments.Checkpoint,
    step: Annotated[str | None, typer.Option(help="Only this step.")] = None,
    slice: Annotated[int | None, typer.Option(min=0, help="Only this slice.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Rows shown per slice; 0 shows none.")] = 20,
    verbose: Verbose = False,
    json: arguments.Json = False,
    traceback: arguments.Traceback = False,
) -> None:
    """Read the newest version, check every block against its checksum and every slice against its digest.

    Exits with 1 if anything is not what was written.
    """
    with answering(as_json=json, traceback=traceback) as answer:
        from headrace.cli.checkpoints import offsets_of, open_checkpoint, refused_as_usage, slices_of
        from headrace.driver.inspection.checkpointview import steps_with_state

        opened = open_checkpoint(checkpoint)
        with refused_as_usage():
            manifest = opened.newest()
        if step is not None and step not in (steps := steps_with_state(manifest)):
            raise typer.BadParameter(f"step {step!r} has no state; steps with state: {', '.join(steps) or 'none'}")
        found = slices_of(opened, manifest, step, slice)
        broken = [s for s in found if s.error is not None]
        answer |= {"checkpoint": str(checkpoint), "cut": manifest.token.cut, "version": str(manifest.token)}
        answer |= {"offsets": offsets_of(opened, manifest), "slices": [_as_data(s, limit) for s in found]}
        answer |= {"broken": len(broken), "rows": sum(len(s.rows) for s in found)}
        if not json:
            _print(answer, found, limit, verbose=verbose)
        for one in broken:
            messages().print(Text(f"error: {one.error}", style="red"))
        if broken:
            raise typer.Exit(FAILED)


@state.command()
def export(
    checkpoint: arguments.Checkpoint,
    step: Annotated[str, typer.Option(help="The step whose state is wanted; state ls and show name them.")],
    to: Annotated[
        str, typer.Option(metavar="FILE", help="A .parquet, .csv or .jsonl file; - prints JSON lines.")
    ] = "-",
    json: arguments.Json = False,
    traceback: arguments.Traceback = False,
) -> None:
    """Write a step's state as a table: of process a row for each key, of a reduce one for each key and window.

    The same as hr.read_state gives. A job may run on the checkpoint meanwhile.
    """
    with answering(as_json=json, traceback=traceback) as answer:
        from headrace.cli.checkpoints import open_checkpoint, refused_as_usage
        from headrace.cli.exporting import check_target, write_table
        from headrace.driver.inspection.statetables import state_table

        check_target(to)
        opened = open_checkpoint(checkpoint)
        with refused_as_usage():
            table = state_table(opened, step)
        write_table(table, to)
        answer |= {"checkpoint": str(checkpoint), "step": step, "rows": table.num_rows, "columns": table.column_names}
        if to != "-":
            answer["to"] = to
            messages().print(Text(f"{table.num_rows:,} rows of step {step!r} are in {to}"))


def _as_data(one: SliceState, limit: int) -> dict[str, Any]:
    facts = {"step": one.step, "slice": one.slice, "subtask": one.subtask, "cut": one.cut}
    facts |= {"blocks": one.blocks, "bytes": one.bytes, "ok": one.error is None}
    if one.error is not None:
        return {**facts, "error": one.error}
    return {**facts, "rows": len(one.rows), "content": one.rows[:limit]}


def _print(answer: dict[str, Any], found: list[SliceState], limit: int, *, verbose: bool) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"cut {answer['cut']}, version {answer['version']}", style="bold")
    _print_offsets(console, answer["offsets"], verbose=verbose)
    for one in found:
        sound = Text("ok", style="green") if one.error is None else Text("BROKEN", style="bold red")
        facts = f"{one.step} slice {one.slice}: {len(one.rows)} rows in {one.blocks} blocks, {one.bytes:,} bytes, "
        facts += f"subtask {one.subtask}, " if one.subtask is not None else ""
        facts += f"stored at cut {one.cut}, " if one.cut is not None else ""
        console.print(Text.assemble(facts, sound))
        for row in one.rows[:limit]:
            console.print(Text("   " + "  ".join(f"{name}={_shown(value, verbose)}" for name, value in row.items())))
        if len(one.rows) > limit > 0:
            console.print(Text(f"   … and {len(one.rows) - limit} more", style="dim"))


def _print_offsets(console: Console, offsets: dict[str, dict[int, Any]], *, verbose: bool) -> None:
    for source, partitions in offsets.items():
        for partition, offset in partitions.items():
            console.print(Text(f"   {source}, partition {partition}, goes on from {_shown(offset, verbose)}"))


def _shown(value: Any, verbose: bool) -> str:
    """A value for people; without ``verbose`` long lists are counted, and long texts cut."""
    if verbose or not isinstance(value, dict | list | tuple | str):
        return str(value)
    if isinstance(value, dict):
        few = ", ".join(f"{name}: {_shown(item, verbose)}" for name, item in list(value.items())[:_FEW])
        return f"{few}, … {len(value):,} in all" if len(value) > _FEW else few
    if isinstance(value, str):
        return value if len(value) <= _LONG else f"{value[:_LONG]}…"
    return f"({len(value):,} entries)" if len(value) > _FEW else str(value)
