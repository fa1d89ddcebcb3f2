"""Studies: many runs of one experiment, in one folder; finished ones are found and not run again."""
