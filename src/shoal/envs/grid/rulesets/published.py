"""XLand-MiniGrid's published benchmarks: their names, where their files are, and the download.

A file is compared with a checksum before it gets its name: with the one that is known here or, for the others, with
the one of its first download, which stands beside it in `FILE.sha256`. Its content is never executed (see
`unpickling`).
"""

import contextlib
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Generator, Sequence
from pathlib import Path

from shoal.base.errors import ShoalError
from shoal.base.files import report_os_errors, write_whole_file

# The names of the benchmarks, and of their files (xminigrid 0.9.3).
FILES = {
    "trivial-21k": "trivial_21k",
    "small-1m": "small_1m_v3",
    "medium-1m": "medium_1m_v3",
    "medium-3m": "medium_3m_v3",
    "high-1m": "high_1m_v3",
    "high-3m": "high_3m_v3",
}
# SHA-256 of the files, as far as a record of them was found: that of a third party who had downloaded these two. The
# publisher states none.
SHA256 = {
    "trivial_21k": "36b11a3aaec1d00d768283644d978a93897d3bf93f15415dcfa1b1c083878086",
    "small_1m_v3": "c9c8ec0ec06d6337481e07c13872cd89df201e787093fc718e7ec368910195bf",
}
HOST = "https://huggingface.co"  # HF_ENDPOINT names a mirror, as it does for Hugging Face's own library
FOLDER = "datasets/Howuhh/xland_minigrid/resolve/main"
TIMEOUT = 30  # seconds without an answer
CHUNK = 2**20  # bytes
OWN_FORMAT = b"PK"  # the first bytes of a file in Shoal's format


def url_of(name: str) -> str:
    """Return the address of a published file."""
    return f"{(os.environ.get('HF_ENDPOINT') or HOST).rstrip('/')}/{FOLDER}/{name}"


def download(benchmark: str, paths: Sequence[Path], max_bytes: int) -> None:
    """Download a benchmark's file to the first of its paths; it is complete and has its checksum, or does not exist.

    Raises:
      ShoalError: there is no network, the file is incomplete, too large or another one, or it cannot be written.
    """
    path = paths[0]
    url, digest, size = url_of(path.name), hashlib.sha256(), 0
    where = (
        f"get it where there is a network, as {paths[0]} or {paths[1]}, in whose place SHOAL_DATA and "
        "XLAND_MINIGRID_DATA name other folders"
    )
    with write_whole_file(path) as file:
        try:
            with contextlib.closing(_content(url)) as content:
                for chunk in content:
                    digest.update(chunk)
                    size += len(chunk)
                    if size > max_bytes:
                        raise ShoalError(f"it has more than {max_bytes:,} bytes")
                    file.write(chunk)
        except ShoalError as error:
            raise ShoalError(
                f"benchmark {benchmark} cannot be downloaded from {url}: {str(error).rstrip('.')}; {where}."
            ) from error
        expected = SHA256.get(path.name) or _recorded(path) or digest.hexdigest()
        if digest.hexdigest() != expected:
            raise ShoalError(
                f"benchmark {benchmark} is another file than before: what {url} has is of SHA-256 "
                f"{digest.hexdigest()}, where {expected} is expected; it was not kept."
            )
        # Before the file has its name, so that there is none without a record.
        with write_whole_file(_record_of(path)) as record:
            record.write(f"{expected}\n".encode())


def check_downloaded(path: Path) -> None:
    """Require that a file that was downloaded is still the same; one in Shoal's format may have taken its place.

    Raises:
      ShoalError: it is not, or cannot be read.
    """
    expected = _recorded(path)
    if not expected:
        return
    with report_os_errors(f"benchmark {str(path)!r} cannot be read"), open(path, "rb") as file:
        if file.read(len(OWN_FORMAT)) == OWN_FORMAT:
            return
        file.seek(0)
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise ShoalError(
            f"benchmark {str(path)!r} is not the file that was downloaded: its SHA-256 is {found}, and "
            f"{_record_of(path).name} has {expected}; remove the file, and it is downloaded again."
        )


def _content(url: str) -> Generator[bytes, None, None]:
    """Yield the content of an address in pieces.

    Raises:
      ShoalError: there is none, or it ends early; the message is a clause.
    """
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
            size, received = response.headers.get("Content-Length"), 0
            while chunk := response.read(CHUNK):
                received += len(chunk)
                yield chunk
            if size is not None and received != int(size):
                raise ShoalError(f"it ended after {received:,} of {int(size):,} bytes")
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is the answer, too
        reason = getattr(error, "reason", None) or error
        raise ShoalError(str(getattr(reason, "strerror", None) or reason).rstrip(".")) from error


def _record_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _recorded(path: Path) -> str:
    """Return the checksum that was recorded at a download; "" if there was none."""
    record = _record_of(path)
    if not record.exists():
        return ""
    with report_os_errors(f"{record} cannot be read"):
        return record.read_text().strip()
