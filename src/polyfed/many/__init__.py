"""Many models over one pool of clients: each with its own data, method and door, one run for all of them."""
