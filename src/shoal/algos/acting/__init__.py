"""Parts of acting: networks, memories, actions, normalisation."""
