"""What any program needs: errors, files, imports, signals, the cores of the machine."""
