"""What every room may use: checks, files, paths, text."""
