"""Keeping a repository small: expiration, garbage collection, statistics."""
