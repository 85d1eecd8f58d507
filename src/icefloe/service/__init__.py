"""The repository service: who may read and write which repository, and credentials for it."""
