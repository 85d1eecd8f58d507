"""Which references go into which manifests, how these are written, found and laid out anew."""
