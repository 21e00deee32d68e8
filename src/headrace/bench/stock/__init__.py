"""Stock Spark's side of comparisons, each in a process of its own; knows nothing of the experiments that ask for it."""
