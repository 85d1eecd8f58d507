"""Speed, memory and size, measured beside the reference implementation in the same run."""
