"""The command line: the only part that reads the environment and prints."""
