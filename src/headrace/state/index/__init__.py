"""Which row of memory a key has. In come key columns; out go row numbers, and which keys were evicted for whom.
Compiled kernels over arrays; ``policies`` and ``residency`` decide who stays (SCALLA 2.5, 2.6).
"""
