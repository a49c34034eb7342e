"""The checker of environments and its parts."""
