"""SHA-256 of files."""

import hashlib
from pathlib import Path


def file_sha256(path: Path) -> str:
    """Return the checksum of a file, which is read in pieces."""
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_sha256(path: Path) -> dict[str, str]:
    """Return the checksum of each file below a folder, sorted by its path within."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): file_sha256(file) for file in files}
