"""Kill builders, break stores, and see that nothing was lost."""
