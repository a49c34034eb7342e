"""Environments of gymnax and Craftax, and those of users with the same functions."""
