"""What a dataset was made of: the record of its sources, and what it covers."""
