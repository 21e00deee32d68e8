"""Rows of accumulators by pane and key. In come records or partials; out go results, and changes since they were last
stored.
"""
