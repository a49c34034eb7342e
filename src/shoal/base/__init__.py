"""Errors, files, imports, signals, and the cores of the machine: nothing of reinforcement learning."""
