"""The worlds of MiniGrid and XLand-MiniGrid, and their layouts."""
