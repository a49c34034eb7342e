"""The training of a run that is decided: compile, drive, resume, checkpoints."""
