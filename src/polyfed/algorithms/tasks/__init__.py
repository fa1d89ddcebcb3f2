"""Many tasks, one linear model each."""
