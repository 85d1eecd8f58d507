"""Verify the stored files of a repository: present, readable and consistent.

Verification needs only a storage: it also works for a repository that cannot be opened.
"""
