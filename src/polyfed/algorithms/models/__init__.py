"""Many models, one pool of clients."""
