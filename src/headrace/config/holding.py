"""In which modes a setting holds. Where it would have no effect it is refused by name: nobody relies on what is ignored."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.config.written import Mode
from headrace.errors import ConfigError

_ONE_CUT = "each batch has one cut, at its end"
_NO_CONTROLLER = "no controller decides anything"
_ALL_STAY = "executors stay as they are"
_ONLY: dict[str, tuple[Mode, str]] = {
    "commit": ("realtime", _ONE_CUT),
    "recovery": ("realtime", _ONE_CUT),
    "flush_by": ("realtime", _NO_CONTROLLER),
    "observe_only": ("realtime", _NO_CONTROLLER),
    "trace": ("realtime", _NO_CONTROLLER),
    "executors": ("realtime", _ALL_STAY),
    "release": ("realtime", _ALL_STAY),
    "backup": ("realtime", "all state is loaded from the checkpoint"),
    "trigger": ("microbatch", "one batch is all there is"),
}
"""The mode that a setting is for, and what is so in the others."""


def check_mode(mode: Mode, asked: Iterable[str]) -> None:
    """ConfigError for the first of the settings that were asked for and do not hold in a mode."""
    for name in asked:
        only, why = _ONLY.get(name, (mode, ""))
        if only != mode:
            raise ConfigError(
                f"{name} has no effect in {mode} mode, where {why}; leave it out, or use mode={only!r} for it"
            )
