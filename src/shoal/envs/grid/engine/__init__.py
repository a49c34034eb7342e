"""The engine of grid worlds: cells, the agent, rules, goals and views."""
