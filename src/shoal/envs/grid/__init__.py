"""Grid worlds: the MiniGrid tasks, and XLand-MiniGrid's rules and goals, on one engine.

A grid is flat in memory with a margin around it, one 16-bit value per cell, so that a view is one gather
(`engine.board`, `engine.views`). An action changes at most the cell in front (`engine.agent`). Rules and
goals are rows of a table that are compared with the nine cells near the agent and the cell in front
(`engine.adjacency`, `engine.rules`, `engine.goals`). `engine.world` combines these; `tasks.minigrid` and
`tasks.xland` define the start of an episode.
"""
