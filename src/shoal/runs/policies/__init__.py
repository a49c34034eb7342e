"""What is done with trained policies: load, evaluate, render, film, let them play each other."""
