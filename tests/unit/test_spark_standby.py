"""A driver's signs of life for its standby."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headrace.spark.supervisor import Supervisor
from headrace.state.durable.lock import CheckpointLock


# a driver whose loop started a query for longer than two leases was overtaken, although nothing was wrong with it
def test_signs_of_life_come_also_while_the_loop_is_busy(tmp_path: Path) -> None:
    with CheckpointLock.take(tmp_path) as lock:
        path = tmp_path / "headrace" / "lock"
        began_ns = path.stat().st_mtime_ns
        driver: Any = SimpleNamespace(_lock=lock, _done=threading.Event())  # nobody turns its loop
        beating = threading.Thread(target=Supervisor._beat, args=(driver,), daemon=True)
        beating.start()
        while path.stat().st_mtime_ns == began_ns:
            assert beating.is_alive()
        driver._done.set()
        beating.join(10)
        assert not beating.is_alive()
