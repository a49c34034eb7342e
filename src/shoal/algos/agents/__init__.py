"""Several agents: a single-agent algorithm, for which each agent of each world is a stream."""
