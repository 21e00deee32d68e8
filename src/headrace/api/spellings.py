"""Names that other systems have for what is here: whoever tries one is told ours."""

from __future__ import annotations

FUNCTIONS = {
    "avg": "hr.mean",
    "approx_count_distinct": "hr.count_distinct",
    "percentile_approx": "hr.quantile",
    "window": "hr.tumbling or hr.sliding",
}
METHODS = {
    "agg": ".key_by('column').reduce(n=hr.count())",
    "groupBy": ".key_by('column')",
    "group_by": ".key_by('column')",
    "groupby": ".key_by('column')",
    "keyBy": ".key_by('column')",
    "select": ".map(fn) or .map_batch(fn)",
    "where": ".filter(fn)",
    "withColumn": ".map(fn) or .map_batch(fn)",
    "withWatermark": "job.source(…, event_time='column', lateness='10 s')",
    "with_watermark": "job.source(…, event_time='column', lateness='10 s')",
    "writeStream": ".sink('out', hr.jsonl('out/'))",
}


def missing(what: str, name: str, known: dict[str, str]) -> str:
    """What to say of an attribute that is not there.

    >>> missing("module 'headrace'", "avg", FUNCTIONS)
    "module 'headrace' has no attribute 'avg'; here it is hr.mean"
    """
    return f"{what} has no attribute {name!r}" + (f"; here it is {known[name]}" if name in known else "")
