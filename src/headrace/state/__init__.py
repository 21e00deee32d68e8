"""Keyed state: what steps remember, in memory, beyond it, and durably.

In come record batches (or a user's gets and sets); out go results, and at each commit what changed per slice. ``index``
finds a key's row, ``table`` keeps rows of accumulators, ``spill`` goes beyond memory, ``stores`` serves joins and
``process``, ``durable`` writes changes and brings them back. ``durable.changes.Store`` is what all kinds of state offer
to it. Imports neither Spark nor the control plane.
"""
