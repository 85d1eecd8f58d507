"""An open repository: its branches, tags, history, settings and files, in both spec versions."""
