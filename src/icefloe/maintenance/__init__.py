"""Maintenance of repositories: collect garbage, expire, verify, repair, clone, migrate, measure."""
