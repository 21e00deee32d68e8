"""Which step of a subtask works next (C-MR). In come the heads of its operators' input queues; out goes the one whose
turn it is, by one of the ``disciplines``. ``pressure`` says when reading must stop.
"""
