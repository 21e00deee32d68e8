"""Keyed state: slices, tables, changes per epoch, and their durable form.

In come record batches (or a user's gets and sets) and the blocks of earlier epochs; out go results,
and for each epoch one change per slice, named by attempt and digested. Imports neither Spark nor
the control plane. A store is anything with ``changes()`` and ``load()``; the hash engines, backup
and migration plug in behind those two.
"""
