"""Experiments on latency: how well a bound is kept, what buffers cost, how good the model is."""
