"""The runtime of every algorithm: rollouts, the training loop, evaluation, populations, the run directory."""
