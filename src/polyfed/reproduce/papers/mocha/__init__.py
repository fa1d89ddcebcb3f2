"""Items of: MOCHA."""
