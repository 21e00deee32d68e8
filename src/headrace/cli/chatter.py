"""What Spark's JVM and its Python workers say on standard error, without Spark's start-up notices.

While Spark starts, standard error is a pipe, which the JVM inherits for its life. A thread passes on
what comes out of it: users' own prints in workers, real errors.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_NOTICES = re.compile(
    r"WARNING: Using incubator modules|Using Spark's default log4j profile|Setting default log level to|"
    r"To adjust logging level use|Setting Spark log level to|.* WARN NativeCodeLoader: |"
    r":: loading settings ::|.* WARN Utils: (Your hostname|Set SPARK_LOCAL_IP)"
)


@contextmanager
def quiet_spark(*, quiet: bool = True) -> Iterator[None]:
    """Start Spark inside; ``quiet=False`` leaves everything as it is."""
    if not quiet:
        yield
        return
    ours = os.dup(2)
    source, pipe = os.pipe()
    os.dup2(pipe, 2)
    os.close(pipe)
    threading.Thread(target=_pass_on, args=(source, ours), name="headrace-chatter", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(ours, 2)


def _pass_on(source: int, target: int) -> None:
    with os.fdopen(source, "r", errors="replace") as lines, os.fdopen(target, "w") as out:
        for line in telling(lines):
            out.write(line)
            out.flush()


def telling(lines: Iterable[str]) -> Iterator[str]:
    """The lines worth passing on.

    >>> list(telling(["Setting default log level to \\"WARN\\".\\n", "hello from a worker\\n"]))
    ['hello from a worker\\n']
    """
    return (line for line in lines if not _NOTICES.match(line))
