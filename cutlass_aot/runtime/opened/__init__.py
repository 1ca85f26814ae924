"""What an open bundle consists of: its directory, groups and kernels, each loaded when first needed."""
