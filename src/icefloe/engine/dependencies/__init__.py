"""Which foreign objects a repository needs, and what it takes to read them."""
