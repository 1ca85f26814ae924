"""From tensors to a launch: describe operands, map libraries, load GPU code, call."""
