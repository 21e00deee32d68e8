"""From decisions to actions. In come reports and the running plan; out go orders to subtasks, each decision journaled."""
