"""Recurrent networks: cores, torsos with a memory, and queries of a grid's cells."""
