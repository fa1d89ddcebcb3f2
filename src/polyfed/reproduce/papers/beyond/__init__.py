"""Items of: Beyond the papers."""
