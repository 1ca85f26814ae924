"""Programs in a build: run them where there is no GPU, and compile what they request."""
