"""Bytes to values and back, as the Icechunk format lays them out.

Pure: no I/O, no clock, no asynchronous code. Bulk contents are numpy columns.
"""
