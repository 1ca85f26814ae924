"""The kernel record and what it is made of: operands, element types, epilogues, designs, artifacts."""
