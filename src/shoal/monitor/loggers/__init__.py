"""Loggers: where the numbers of a run are sent to while it trains."""
