"""Manifests that were built elsewhere, linked by one commit."""
