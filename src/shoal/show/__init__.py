"""The output of a run: progress, plots, films and reports."""
