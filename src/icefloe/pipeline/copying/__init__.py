"""Values out of files and arrays into a repository, with chunks of one's own choice."""
