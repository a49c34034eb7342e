"""The compiled program: rollouts, the training loop, evaluation, and populations; nothing of the host."""
