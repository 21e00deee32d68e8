"""Keepers: one process per executor that has copies of state, and outlives the workers.

In come copies (``asks``, over ZeroMQ with CURVE as on the control channel) from workers that hold the run's key, out go
the bytes of blocks. ``starting`` finds or starts the own node's keeper, ``keeper`` is that process, ``keeperclient`` asks it.
"""
