"""Walks over the history of a repository: versions, their manifests, their references."""
