"""Search over settings: spaces, results of many settings, pictures, and tuning by Optuna."""
