"""The seams: problems, federations, messages, fleets, work, and the errors and keys they share."""
