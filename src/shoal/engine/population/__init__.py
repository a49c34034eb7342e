"""Many runs as one program: its members, their layout on devices, halving, and exchanges."""
