"""Stock Spark's side of comparisons, each in a process of its own."""
