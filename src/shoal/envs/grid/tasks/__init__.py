"""The tasks of MiniGrid and XLand-MiniGrid, and their layouts."""
