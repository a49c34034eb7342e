"""The checker of environments, and what it is made of."""
