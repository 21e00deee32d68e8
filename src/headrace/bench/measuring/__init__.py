"""How experiments measure: figures with fixed names, recorders, peak memory, the machine's own noise."""
