"""Files of arrays whose record was changed and whose checksum is right, as another program could make them."""

import hashlib
import json

ZEROS = b"0" * 64


def split(data):
    """Return the header, the record and the numbers of a file of arrays."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    return header, json.loads(header["__metadata__"]["shoal"]), data[8 + size :]


def record_of(path):
    """Return the record of a file of arrays."""
    return split(path.read_bytes())[1]


def joined(header, record, numbers):
    """Return the content of a file; a record that is text stands behind its checksum as it is."""
    text = (
        record
        if isinstance(record, str)
        else json.dumps({x: y for x, y in record.items() if x != "sha256"})[1:]
    )
    header["__metadata__"]["shoal"] = f'{{"sha256":"{ZEROS.decode()}",{text}'
    made = json.dumps(header, separators=(",", ":")).encode()
    whole = len(made).to_bytes(8, "little") + made + numbers
    return whole.replace(ZEROS, hashlib.sha256(whole).hexdigest().encode(), 1)


def forge(path, change=lambda record: None, change_header=lambda header: None):
    """Apply functions to the record and to the header of a file; `change` may return another record."""
    header, record, numbers = split(path.read_bytes())
    change_header(header)
    path.write_bytes(joined(header, change(record) or record, numbers))
