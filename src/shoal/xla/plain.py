"""The switch between the fast forms and the plain forms."""

import os

USE_PLAIN = os.environ.get("SHOAL_PLAIN", "") not in ("", "0")
"""Whether every trick takes its plain form: `SHOAL_PLAIN=1` in the environment, read once at import."""
