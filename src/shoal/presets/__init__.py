"""Tuned hyper-parameters per environment, as data."""
