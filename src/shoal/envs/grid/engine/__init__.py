"""The engine of grid worlds: cells, the agent, rules, goals, views."""
