"""Which foreign objects a repository needs, and which credentials reading them takes."""
