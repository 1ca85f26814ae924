"""Sources of kernels: the protocol, the registry, and one module a source."""
