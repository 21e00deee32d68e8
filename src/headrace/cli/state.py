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

state = typer.Typer(help="Look into a checkpoint: versions, slices, sizes, offsets, integrity.", no_args_is_help=True)


@state.command()
def ls(checkpoint: arguments.Checkpoint, json: arguments.Json = False, traceback: arguments.Traceback = False) -> None:
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
            _print_offsets(console, version["offsets"])
        if not versions:
            console.print("there is no version yet")


@state.command()
def show(
    checkpoint: arguments.Checkpoint,
    step: Annotated[str | None, typer.Option(help="Only this step.")] = None,
    slice: Annotated[int | None, typer.Option(min=0, help="Only this slice.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Rows shown per slice; 0 shows none.")] = 20,
    json: arguments.Json = False,
    traceback: arguments.Traceback = False,
) -> None:
    """Read the newest version, check every block against its checksum and every slice against its digest.

    Exits with 1 if anything is not what was written.
    """
    with answering(as_json=json, traceback=traceback) as answer:
        from headrace.cli.checkpoints import offsets_of, open_checkpoint, slices_of

        opened = open_checkpoint(checkpoint)
        newest = opened.log.newest_cut()
        if newest is None:
            raise typer.BadParameter(f"{checkpoint}: there is no version yet")
        manifest = newest[1].manifest
        steps = sorted({name.partition("#")[0] for name, _ in manifest.slices})
        if step is not None and step not in steps:
            raise typer.BadParameter(f"step {step!r} has no state; steps with state: {', '.join(steps) or 'none'}")
        found = slices_of(opened.storage, manifest, step, slice)
        broken = [s for s in found if s.error is not None]
        answer |= {"checkpoint": str(checkpoint), "cut": manifest.token.cut, "version": str(manifest.token)}
        answer |= {"offsets": offsets_of(opened, manifest), "slices": [_as_data(s, limit) for s in found]}
        answer |= {"broken": len(broken), "rows": sum(len(s.rows) for s in found)}
        if not json:
            _print(answer, found, limit)
        for one in broken:
            messages().print(Text(f"error: {one.error}", style="red"))
        if broken:
            raise typer.Exit(FAILED)


def _as_data(one: SliceState, limit: int) -> dict[str, Any]:
    facts = {"step": one.step, "slice": one.slice, "subtask": one.subtask, "cut": one.cut}
    facts |= {"blocks": one.blocks, "bytes": one.bytes, "ok": one.error is None}
    if one.error is not None:
        return {**facts, "error": one.error}
    return {**facts, "rows": len(one.rows), "content": one.rows[:limit]}


def _print(answer: dict[str, Any], found: list[SliceState], limit: int) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"cut {answer['cut']}, version {answer['version']}", style="bold")
    _print_offsets(console, answer["offsets"])
    for one in found:
        sound = Text("ok", style="green") if one.error is None else Text("BROKEN", style="bold red")
        facts = f"{one.step} slice {one.slice}: {len(one.rows)} rows in {one.blocks} blocks, {one.bytes:,} bytes, "
        facts += f"subtask {one.subtask}, " if one.subtask is not None else ""
        facts += f"stored at cut {one.cut}, " if one.cut is not None else ""
        console.print(Text.assemble(facts, sound))
        for row in one.rows[:limit]:
            console.print(Text("   " + "  ".join(f"{name}={value}" for name, value in row.items())))
        if len(one.rows) > limit > 0:
            console.print(Text(f"   … and {len(one.rows) - limit} more", style="dim"))


def _print_offsets(console: Console, offsets: dict[str, dict[int, Any]]) -> None:
    for source, partitions in offsets.items():
        for partition, offset in partitions.items():
            console.print(Text(f"   {source} partition {partition} goes on at {offset}"))
