"""Which step of a subtask works next (C-MR). In come the input queues of its operators and a discipline; out goes one
turn at a time. ``pressure`` says when reading must stop.
"""
