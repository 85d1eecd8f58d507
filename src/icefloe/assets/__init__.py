"""Typed, cached files of a repository: where bytes on storage become values."""
