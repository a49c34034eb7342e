"""The run directory: its files, policies and summary."""
