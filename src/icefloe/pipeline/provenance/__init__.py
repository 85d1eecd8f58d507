"""The record of the files that a dataset was made of, and what the dataset covers."""
