"""What a run shows: progress, plots, films and reports."""
