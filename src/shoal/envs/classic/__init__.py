"""Classic control environments, each step equal to Gymnasium's."""
