"""The writing of a dataset: its metadata, the record of its files, its manifests."""
