"""What state that is cut into slices costs and allows: ChronoStream's workloads, and experiments with them."""
