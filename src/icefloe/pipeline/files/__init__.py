"""Sources to what is known of them: which there are, what they contain, where their chunks lie."""
