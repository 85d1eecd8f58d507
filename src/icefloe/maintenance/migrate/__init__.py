"""Migrate a repository from spec version 1 to spec version 2."""
