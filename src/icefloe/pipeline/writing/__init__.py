"""What is written for a dataset: its metadata, the record of its files, its manifests."""
