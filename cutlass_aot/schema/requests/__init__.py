"""Records of programs: requests, recordings of them, and their index in a bundle."""
