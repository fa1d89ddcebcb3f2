"""Items of: Other frameworks."""
