"""``headrace demo``: the job, its made-up tweets, its live board, the check of its answers."""
