"""Environments of Jumanji, and those of users with the same functions."""
