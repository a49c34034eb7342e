"""Pure functions on arrays: the mathematics of the field, importable on its own."""
