"""Rulesets of grid worlds: their files, generation, selection and description."""
