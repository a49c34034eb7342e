"""Write the revision into a package that is built from a checkout, where no installed copy could find it otherwise."""

import runpy
import tempfile
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class RevisionHook(BuildHookInterface):
    """Add `shoal/revision.txt`; a source distribution has it already when a wheel is built from it."""

    def initialize(self, version, build_data):
        """Write the file into a temporary directory, and include it."""
        package = Path(self.root, "src", "shoal")
        installation = runpy.run_path(str(package / "base" / "installation.py"))
        revision = installation["revision"](package)
        if version == "editable" or revision is None or (package / installation["REVISION"]).exists():
            return
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name, installation["REVISION"])
        file.write_text(f"{revision}\n", encoding="utf-8")
        folder = "src/shoal" if self.target_name == "sdist" else "shoal"
        build_data["force_include"][str(file)] = f"{folder}/{file.name}"

    def finalize(self, version, build_data, artifact_path):
        """Remove the temporary directory."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
