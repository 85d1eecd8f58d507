"""A soak: many processes work on one repository while they are killed and their storage fails.

Run it with `python -m tests.soak`. Every writer notes in a journal what it is about to commit and
what was acknowledged. In the end, both libraries read everything, and every acknowledged value
must be there.
"""
