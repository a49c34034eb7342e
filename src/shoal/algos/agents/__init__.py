"""Several agents: an algorithm for one agent, of which each agent of each world is a stream."""
