"""The content-addressed store: blobs by digest, records by key."""
