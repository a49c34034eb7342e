"""What acting needs: networks, memories, actions, normalisation."""
