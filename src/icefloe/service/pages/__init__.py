"""Pages for people with a browser."""
