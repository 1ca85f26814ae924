"""The runtime side: open a bundle, find a kernel, launch it. Nothing here compiles anything."""
