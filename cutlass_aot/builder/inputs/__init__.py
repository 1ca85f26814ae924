"""What a build follows from, and whether the last build already did it."""
