"""Maintenance of a store: check it, remove what nobody needs, count its contents."""
