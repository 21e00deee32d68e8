"""How much more than usual the tests of properties try: ``make soak`` sets it."""

from __future__ import annotations

import os

MORE = int(os.environ.get("HEADRACE_EXAMPLES", "1"))
"""As many times the examples and seeds of ``make test``."""
