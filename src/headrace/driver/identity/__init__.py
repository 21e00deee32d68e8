"""What a job and its checkpoint must agree on, so that state is never misread.

In comes a plan; out goes the job's identity, step by step and in words (``steps``), what has become different since the
checkpoint was made (``differences``), and the identity that is stored again, grown with the job (``stored``). Functions,
bounds, sinks, parallelism may change at will; what the rows of a step's state mean may not.
"""

from headrace.driver.identity.differences import Difference, differences, grown
from headrace.driver.identity.steps import NEW, Identity, Step, identity
from headrace.driver.identity.stored import check_identity, known_identity, settle_identity

__all__ = [
    "NEW",
    "Difference",
    "Identity",
    "Step",
    "check_identity",
    "differences",
    "grown",
    "identity",
    "known_identity",
    "settle_identity",
]
