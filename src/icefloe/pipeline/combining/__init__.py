"""The facts of many files to one dataset, and what does not fit."""
