"""Environments: the registry, wrappers, the batch, the checker, and the built-in worlds."""
