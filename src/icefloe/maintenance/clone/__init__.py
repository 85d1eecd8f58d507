"""Copy a repository to another storage."""
