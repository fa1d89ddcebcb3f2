"""Many objectives, one model: one file a paper."""
