"""The protocol of cuts in a world of dice: the real machine of the driver and the real version log, with toy subtasks.

One thread, no clock: a seed decides what happens next. Everything that can happen between two steps may happen: messages
are lost and repeated, workers and drivers die, drivers stall and come back, storage and sinks fail before or after what
they were asked for. What is logged, published and removed is compared with what must be, as soon as it happens.

``python -m simulated 17`` (in ``tests/unit``) lives seed 17 again and tells the story.
"""
