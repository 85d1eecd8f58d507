"""Virtual chunks: ranges of foreign objects, read from locations that the reader authorised."""
