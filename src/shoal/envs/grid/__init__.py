"""Grid worlds: the MiniGrid tasks, and XLand-MiniGrid's rules and goals, on one engine.

A grid lies flat in memory with a margin about it, one 16-bit value a cell, so that what an agent sees is
one gather (`board`, `views`). An action touches at most the cell in front (`actions`); rules and goals are
rows of a table that are compared with the nine cells about the agent and the cell in front (`near`,
`rules`, `goals`). `world` puts these together, `minigrid` and `xland` say how an episode starts.
"""
