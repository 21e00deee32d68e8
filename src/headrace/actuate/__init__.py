"""From decisions to deeds: the running job as the controller sees it, and its settings as orders.

Before it starts: what to expect of it (``paths``, ``planning``, ``calibrate``), and how long its epochs last (``epochs``).
"""
