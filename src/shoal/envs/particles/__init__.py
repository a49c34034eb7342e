"""Worlds of discs and spheres that touch, slide and roll, and tasks in them; see `docs/particles.md`."""
