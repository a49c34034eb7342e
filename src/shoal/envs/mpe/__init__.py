"""Particle worlds of several agents, each step equal to that of the package mpe2."""
