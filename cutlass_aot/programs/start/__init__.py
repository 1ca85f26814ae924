"""Starting programs: begin a recording or serving in each of their Python processes."""
