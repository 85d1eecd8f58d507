"""Short-lived credentials: what they allow, how each platform makes them, and their keeping."""
