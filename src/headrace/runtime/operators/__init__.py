"""The steps that a subtask hosts, other than reduces. In come batches and watermarks, per port; out go batches and
watermarks to whatever is wired behind. ``operator`` is what all of them are.
"""
