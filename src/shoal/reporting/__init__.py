"""Reading of run directories: lists of runs, loggers, comparisons and reports. Nothing here imports JAX."""
