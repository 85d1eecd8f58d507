"""Repair a damaged repository: delete nothing, keep what is replaced, report what is lost."""
