"""Whether the stored files of a repository are all there, can be read, and fit together.

Needs nothing but a storage: a repository that cannot even be opened can be verified.
"""
