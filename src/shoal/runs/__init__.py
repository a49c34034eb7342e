"""A run on the host, from its settings to its files: plan, compile, train, resume, load, evaluate."""
