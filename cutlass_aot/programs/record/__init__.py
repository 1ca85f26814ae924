"""Recording requests: a program runs with a GPU that is not there, or with a real one."""
