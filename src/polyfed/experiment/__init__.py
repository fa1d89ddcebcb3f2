"""From settings to a plan: the schema of an experiment, building, overrides, imports."""
