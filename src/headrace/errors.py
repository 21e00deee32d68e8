"""Everything Headrace raises: one tree, each class also the builtin it resembles."""

from __future__ import annotations


class HeadraceError(Exception):
    """Root of all errors raised by Headrace."""


class UnitError(HeadraceError, ValueError):
    """A duration, size or rate could not be read."""


class ConfigError(HeadraceError, ValueError):
    """A setting is missing, unknown or contradictory."""


class GraphError(HeadraceError, ValueError):
    """The job is not a legal workflow; found before anything starts."""


class SchemaError(HeadraceError, TypeError):
    """Records do not have the columns or types that a step needs."""


class DataError(HeadraceError, ValueError):
    """Input that cannot be read as a record (malformed, wrong type, wrong time)."""


class UserCodeError(HeadraceError, RuntimeError):
    """A user's function raised; names the step, the record and the line."""

    def __init__(self, step: str, record: str, line: str, cause: str) -> None:
        super().__init__(
            f"step {step!r} failed at {line}: {cause}\n"
            f"  record: {record}\n"
            f"  fix the function, or give the job on_error='skip' or a dead-letter sink"
        )
        self.step, self.record, self.line, self.cause = step, record, line, cause

    def __reduce__(self) -> tuple[type[UserCodeError], tuple[str, str, str, str]]:
        return UserCodeError, (self.step, self.record, self.line, self.cause)


class StateError(HeadraceError, RuntimeError):
    """State cannot be stored, loaded or moved."""


class CorruptionError(StateError, OSError):
    """Stored bytes are not what was written; names the block."""


class FencedError(StateError):
    """A newer driver or attempt owns this work."""


class ProtocolError(StateError):
    """A rule of the epoch protocol was broken (missing frames, audit mismatch, lost worker)."""


class ChannelError(HeadraceError, ConnectionError):
    """The control channel did not answer in time or refused the caller."""


class MessageError(HeadraceError, ValueError):
    """A control message of an unknown kind, or not of its kind's form: driver and worker differ in version."""


class EnvironmentMissingError(HeadraceError, EnvironmentError):
    """Java, a package or a Spark setting is missing; the message has the fix."""


class UnstableError(HeadraceError, ValueError):
    """Work arrives faster than it can be done: no wait can be predicted."""


class RunFailedError(HeadraceError, RuntimeError):
    """The job stopped and could not be restarted."""
