"""Expressions in the form that XLA compiles to a fast program, each beside its plain form."""
