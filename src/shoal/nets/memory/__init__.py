"""Recurrent networks: cores, torsos with a memory, and attention to a grid's cells."""
