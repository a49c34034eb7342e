"""Shoal: reinforcement learning as one compiled JAX program."""
