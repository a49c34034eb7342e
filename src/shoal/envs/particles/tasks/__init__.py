"""Tasks in worlds of particles: agents are discs or spheres that move to targets."""
