"""Checks that are too long for the tests, or need a GPU, and what makes tables for documents."""
