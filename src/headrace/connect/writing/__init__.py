"""How sinks write: rows as JSON or Arrow, staged per cut, and published into files that roll."""
