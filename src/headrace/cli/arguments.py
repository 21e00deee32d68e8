"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

ModeName = Literal["realtime", "microbatch", "batch"]

App = Annotated[
    str,
    typer.Argument(
        metavar="APP.PY[:JOB[,JOB…]]", help="A Python file with a job; if several, which one, or which run together."
    ),
]
Checkpoint = Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="The checkpoint directory of a job.")]
Mode = Annotated[ModeName, typer.Option(help="How Spark runs the job.")]
Parallelism = Annotated[int | None, typer.Option(min=1, help="Subtasks per stage, where a step does not say.")]
Rate = Annotated[str | None, typer.Option(help="Of all sources together, for predictions: '5000/s'.")]
Calibrate = Annotated[bool, typer.Option("--calibrate", help="Measure the steps on sample records first.")]
Trace = Annotated[
    Path | None,
    typer.Option(help="Predict from what an earlier run measured, its trace= file, and decide by it again."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 3 if a latency constraint was violated.")]
Traceback = Annotated[bool, typer.Option("--traceback", help="Show where in the code an error came from.")]
