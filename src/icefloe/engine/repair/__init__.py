"""Repair that is honest: nothing is deleted, what is replaced is kept, what is lost is told."""
