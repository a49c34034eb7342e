"""`python -m shoal`, which is the command `shoal`."""

import sys

from shoal.cli import main

sys.exit(main())
