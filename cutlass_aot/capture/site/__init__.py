"""Stands first on the path of programs that are watched."""
