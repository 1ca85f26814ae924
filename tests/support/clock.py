"""Times for tests of what must not wait."""

SOON = 20.0
"""Seconds within which what does not wait has ended, on a machine that is busy with other things too. What it
would wait for, if it waited, takes a minute."""
