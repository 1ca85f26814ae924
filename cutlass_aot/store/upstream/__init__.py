"""Upstream stores: where a store looks for what it lacks, on web servers and in buckets."""
