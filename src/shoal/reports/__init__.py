"""What is made of finished runs: lists, comparisons, pages and plots. Nothing here imports JAX."""
