"""Looking after a store: check it, collect what nobody needs, count what it holds."""
