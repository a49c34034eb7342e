"""Structs and settings: declarations with bounds, and the flat view of a config by names."""
