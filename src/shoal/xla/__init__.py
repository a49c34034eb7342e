"""Expressions in forms that XLA compiles to fast programs, each with its plain form."""
