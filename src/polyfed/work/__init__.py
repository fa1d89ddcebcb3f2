"""What clients do: one file a kind of request."""
