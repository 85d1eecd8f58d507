"""Repositories of spec 1 become repositories of spec 2."""
