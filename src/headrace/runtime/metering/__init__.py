"""What a subtask measures about itself. In come arrivals, visits and departures of buffers; out goes one report per
interval.
"""
