"""Anything with links -> a page store."""
