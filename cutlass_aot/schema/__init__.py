"""Records that the build side and the runtime side share. Standard library and msgpack alone."""
