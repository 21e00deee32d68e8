"""How sinks write: rows as JSON, and files that are staged first and published on commit."""
