"""A subtask's part in cuts: ``readiness`` and ``sourceorders`` (when), ``cuts`` (how), ``handover`` (what it set aside on its
way to the version log), ``arrivals`` (slices that a cut gives to it).
"""
