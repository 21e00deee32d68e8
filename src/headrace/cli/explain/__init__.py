"""``headrace explain``: what a job will be on Spark, as data and in words, without starting it."""
