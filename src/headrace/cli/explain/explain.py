"""``headrace explain``: what a job will be on Spark, without starting it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.cli import arguments
from headrace.cli.answers import answering
from headrace.cli.apps import load_job
from headrace.config import Settings

_NOWHERE = Path("headrace-explain-has-no-checkpoint")


def explain(
    app: arguments.App,
    mode: arguments.Mode = "realtime",
    parallelism: arguments.Parallelism = None,
    rate: arguments.Rate = None,
    calibrate: arguments.Calibrate = False,
    trace: arguments.Trace = None,
    json: arguments.Json = False,
    traceback: arguments.Traceback = False,
) -> None:
    """Show a job's graph, stages, schemas, constraints and Spark settings, each with its reason."""
    with answering(as_json=json, traceback=traceback) as answer:
        from headrace.cli.explain.explaining import (  # models: other commands start faster without them
            explanation,
            show,
        )
        from headrace.cli.explain.predictions import known_costs, predictions, replayed
        from headrace.driver.planning import plan_job
        from headrace.spark.session import needed
        from headrace.spark.shipping import ship_by_value

        settings = Settings.of(mode=mode, parallelism=parallelism or Settings().parallelism)
        plan = plan_job(load_job(app), _NOWHERE, settings)
        ship_by_value(plan.graph)
        answer |= explanation(plan, needed(mode))
        found: dict[str, Any] | None = None
        if plan.graph.constraints and plan.eager:
            found = predictions(plan, known_costs(plan, calibrate=calibrate, trace=trace), rate)
            answer["predictions"] = found
            if trace is not None:
                found["decisions"] = replayed(plan, trace)
        if not json:
            show(plan, needed(mode), found)
