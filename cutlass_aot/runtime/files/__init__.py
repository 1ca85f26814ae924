"""Reading a bundle's files: bounded, verified, and signed by trusted keys where they are required."""
