"""What runs any algorithm: rollouts, the training loop, evaluation, populations, the run directory."""
