"""Where the tensors of an archive that torch has mapped lie in its file.

Pages of a map count as resident once touched, so reading gigabytes through it would look, and
under a limit be, as if the whole file were in memory. Read at positions they are not.
Source: torch's archive format, a zip whose entries `.../data/N` are storages, uncompressed.
"""

import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def map_address(path: Path, tensors: Iterable[Any]) -> int | None:
    """Return the address at which the file was mapped for `tensors`; None if it was not.

    It is the one address that puts every storage onto an entry of the archive.
    """
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors
    }
    found = sorted((address, size) for address, size in storages.items() if size)
    entries = _entries(path)
    if not found or any(size > path.stat().st_size for _, size in found):
        return None
    for place in sorted(entries):
        base: int = found[0][0] - place
        if all(entries.get(address - base, -1) >= size for address, size in found):
            return base
    return None


def _entries(path: Path) -> dict[int, int]:
    """Return the size of every stored entry by its place in the file."""
    entries = {}
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            for item in archive.infolist():
                if item.compress_type != zipfile.ZIP_STORED or "/data/" not in item.filename:
                    continue
                # the list at the end does not say how long the entry's own header is
                file.seek(item.header_offset + 26)
                name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
                entries[item.header_offset + 30 + name_bytes + extra_bytes] = item.file_size
    except (zipfile.BadZipFile, struct.error):
        return {}
    return entries
