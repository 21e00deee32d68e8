"""Experiments on overlapping windows over trades: panes, sharing, C-MR's moving averages."""
