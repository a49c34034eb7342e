"""The decision of every setting of a run, before anything compiles."""
