"""Live one seed again, and tell the story."""

from __future__ import annotations

import sys

from simulated.world import World

if __name__ == "__main__":
    World(int(sys.argv[1]), tell=print).run()
