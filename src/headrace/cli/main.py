"""The entry point: every command, and the options before them."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace import __version__
from headrace.cli.bench import bench
from headrace.cli.demo.demo import demo
from headrace.cli.doctor import doctor
from headrace.cli.explain.explain import explain
from headrace.cli.mending import repair, verify
from headrace.cli.run import run
from headrace.cli.state import state

_EXIT_CODES = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a constraint was violated and --strict was given."

app = typer.Typer(
    name="headrace",
    help=f"Continuous MapReduce on Apache Spark with latency guarantees.\n\n{_EXIT_CODES}",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(run)
app.command()(explain)
app.command()(doctor)
state.command()(verify)
state.command()(repair)
app.add_typer(state, name="state")

app.command()(bench)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options that stand before a command."""


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
