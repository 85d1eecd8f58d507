"""Revisions of the schema, upwards and downwards."""
