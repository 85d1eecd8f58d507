"""From an archive to a versioned cube: the main job, on made-up and on real data."""
