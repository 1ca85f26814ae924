"""The kernel record and its parts: operands, element types, epilogues, designs, artifacts."""
