"""Records of speed: lists of problems, tuning files, rankings."""
