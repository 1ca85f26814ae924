"""Feed damaged files to every reader."""
