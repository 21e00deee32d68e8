"""Named, reproducible experiments behind ``headrace bench``.

In come a few options; out goes one line of figures with fixed names (``docs/benchmarks.md``). Every
experiment checks its answers against an offline reference in the same run.
"""
