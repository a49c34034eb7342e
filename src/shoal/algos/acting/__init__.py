"""Parts of acting: memories, actions, normalisation."""
