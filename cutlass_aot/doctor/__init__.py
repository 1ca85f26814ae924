"""What a machine and a bundle say of each other: the answers of ``cutlass-aot doctor``."""
