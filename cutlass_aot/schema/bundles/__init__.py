"""Records of a bundle: the catalog, the index of each group, signatures."""
