"""The references of files to manifests, and to commits."""
