"""What commands print: progress, events as JSON, tables, requests."""
