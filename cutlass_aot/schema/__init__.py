"""Records that the build side and the runtime side share. They need the standard library and msgpack only."""
