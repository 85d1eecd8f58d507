"""Manifests: how chunk references are partitioned, packed, built and found."""
