"""Repositories copied to other storages."""
