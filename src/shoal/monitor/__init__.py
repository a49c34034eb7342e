"""What follows a run while it trains: progress, listeners, loggers, and other processes beside it."""
