"""Sources of kernels: the protocol, the registry, and a module or package for each source."""
