"""The steps that a subtask hosts, other than reduces. In come batches and watermarks, per port, at once or through an
input queue (``queues``); out go batches and watermarks to whatever is wired behind. ``operator`` is what all of them
are, and all that the rest of a subtask knows of them.
"""
