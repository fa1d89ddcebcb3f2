"""Items of: Several models over one pool of clients."""
