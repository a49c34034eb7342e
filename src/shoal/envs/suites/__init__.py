"""What the adapters of other packages' environments share."""
