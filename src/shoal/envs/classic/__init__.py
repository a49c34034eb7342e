"""Classic control, equal to Gymnasium step by step."""
