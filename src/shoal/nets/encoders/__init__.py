"""Encoders: an observation of any space becomes one vector. Each kind is a class; `torsos.py` has them by name."""
