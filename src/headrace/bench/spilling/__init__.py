"""Experiments on state beyond memory: the hash engines against sort-merge and stock Spark, with SCALLA's workloads."""
