"""When buffers leave: their deadlines (``batching``), or their sizes."""
