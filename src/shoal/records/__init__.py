"""What a run is and leaves behind, as values and files. Importing it imports no JAX."""
