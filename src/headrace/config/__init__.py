"""Settings of a run: as users write them (``written``), and as numbers for drivers and workers (``settings``).

In come keyword arguments of ``hr.run`` and the command line; out goes one frozen ``Settings``. Imports ``units``
and ``errors`` only.
"""

from headrace.config.holding import check_mode
from headrace.config.schedules import SCHEDULES, Schedule, Transition, check_schedule
from headrace.config.settings import Settings, default_settings, executor_limits, unknown_setting
from headrace.config.signatures import spelled_out
from headrace.config.written import MODES, Mode, RunSettings

__all__ = [
    "MODES", "SCHEDULES", "Mode", "RunSettings", "Schedule", "Settings", "Transition",
    "check_mode", "check_schedule", "default_settings", "executor_limits", "spelled_out", "unknown_setting",
]  # fmt: skip
