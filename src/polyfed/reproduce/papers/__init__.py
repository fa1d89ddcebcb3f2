"""Items: a folder a paper, a file a figure or table, and functions where a file cannot say it."""
