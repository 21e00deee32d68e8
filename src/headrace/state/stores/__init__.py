"""State that is not accumulators: a user's values per key (``process``), and whole rows (joins)."""
