"""The external objects that a repository needs, and the credentials that reading them takes."""
