"""Copies of durable state on the executors, so that loading it does not depend on the checkpoint's disk alone.

In come segments that are durable; out go their blocks, from the nearest copy whose checksum fits the manifest. A copy has
no version logic of its own: what the version log does not name is never asked for, and what does not fit is not taken.
"""
