"""A page about a build: one file that a browser shows, without a network and without scripts."""
