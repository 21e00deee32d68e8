"""``headrace state verify`` and ``repair``: whether a checkpoint is whole, and putting it right from copies."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from headrace.cli import arguments
from headrace.cli.answers import FAILED, answering, messages

if TYPE_CHECKING:
    from headrace.state.copies.restoring import Damage, Findings

_NODES = ("/dev/shm", tempfile.gettempdir())
"""Below these, in ``headrace-<user>/``, executors of this host keep their copies."""


def verify(
    checkpoint: arguments.Checkpoint, json: arguments.Json = False, traceback: arguments.Traceback = False
) -> None:
    """Read every block of the last two versions, and check it against its checksum, and slices against their digests.

    Changes nothing; a job may go on meanwhile. Exits with 1 if anything is not what was written.
    """
    with answering(as_json=json, traceback=traceback) as answer:
        from headrace.cli.checkpoints import open_checkpoint
        from headrace.state.copies.restoring import examine

        found = examine(open_checkpoint(checkpoint).storage)
        answer |= _as_data(checkpoint, found)
        _print(found, quiet=json)
        if found.damage:
            raise typer.Exit(FAILED)


def repair(
    checkpoint: arguments.Checkpoint,
    copies: Annotated[
        list[Path] | None, typer.Option(help="A directory with segments, such as another checkpoint; may be repeated.")
    ] = None,
    back: Annotated[
        bool, typer.Option("--back", help="If no copy mends the newest version, go back to the one before.")
    ] = False,
    json: arguments.Json = False,
    traceback: arguments.Traceback = False,
) -> None:
    """Take what is damaged from copies: of executors on this host, and of the directories given.

    With --back, if the newest version stays damaged and the one before is whole, the job goes on from that: what was
    read since is read again, and its results are published once more. Exits with 1 if something stays damaged.
    """
    with answering(as_json=json, traceback=traceback) as answer:
        from headrace.cli.checkpoints import open_checkpoint
        from headrace.state.copies.restoring import Directory, examine
        from headrace.state.copies.restoring import repair as mend

        storage = open_checkpoint(checkpoint).storage
        roots = [*(copies or ()), *_nodes_here()]
        mended, lost = mend(storage, examine(storage).broken, [Directory(root) for root in roots])
        found = examine(storage)
        answer |= _as_data(checkpoint, found) | {"mended": len(mended), "lost": len(lost), "looked_in": roots}
        _print(found, quiet=json)
        if not json:
            Console(highlight=False, soft_wrap=True).print(f"{len(mended)} blocks mended from copies")
        if found.damage and not (back and _went_back(checkpoint, found, answer)):
            raise typer.Exit(FAILED)


def _went_back(checkpoint: Path, found: Findings, answer: dict[str, Any]) -> bool:
    """Only if the newest version is damaged and the one before is not."""
    from headrace.cli.checkpoints import open_checkpoint
    from headrace.state.copies.goingback import go_back
    from headrace.state.durable.lock import CheckpointLock

    if not found.whole or found.versions[-1] in found.whole:
        return False
    with CheckpointLock.take(checkpoint):
        token = go_back(open_checkpoint(checkpoint).storage, found.whole[-1])
    answer |= {"went_back_to": str(found.whole[-1]), "version": str(token)}
    messages().print(Text(f"went back to {found.whole[-1]}, which is now {token}; the job goes on from there"))
    return True


def _nodes_here() -> list[Path]:
    """The directories in which executors on this host keep copies, of whatever job: what fits is told by checksums."""
    return [
        path for below in _NODES for path in sorted(Path(below, f"headrace-{os.getuid()}").glob("*")) if path.is_dir()
    ]


def _as_data(checkpoint: Path, found: Findings) -> dict[str, Any]:
    damage = [
        {
            "step": one.step,
            "slice": one.slice,
            "versions": [str(version) for version in one.versions],
            "file": one.block.file if one.block is not None else None,
            "offset": one.block.offset if one.block is not None else None,
            "what": one.what,
        }
        for one in found.damage
    ]
    versions, whole = [str(one) for one in found.versions], [str(one) for one in found.whole]
    return {
        "checkpoint": str(checkpoint), "versions": versions, "whole": whole, "blocks": found.blocks, "damage": damage,
    }  # fmt: skip


def _print(found: Findings, *, quiet: bool) -> None:
    for one in found.damage:
        messages().print(Text(f"damaged: {_where(one)}: {one.what}", style="red"))
    if found.damage and found.whole:
        messages().print(f"version {found.whole[-1]} is whole; headrace state repair --back goes back to it")
    if not quiet:
        versions = ", ".join(str(version) for version in found.versions) or "none yet"
        console = Console(highlight=False, soft_wrap=True)
        console.print(f"versions: {versions}; {found.blocks} blocks read, {len(found.damage)} damaged")


def _where(one: Damage) -> str:
    block = f"block in {one.block.file} at {one.block.offset}" if one.block is not None else "the whole"
    return f"step {one.step!r}, slice {one.slice}, {block}"
