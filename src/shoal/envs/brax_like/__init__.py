"""Environments of MuJoCo Playground and Brax, and those of users with the same functions."""
