"""What a step measures about itself. In come arrivals, visits and departures of what it works on; out go its figures,
once per interval. What is measured on the way between subtasks is ``wire.channelmeter``'s.
"""
