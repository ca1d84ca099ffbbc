"""Rows of a data file: a JSON list, JSON lines, text lines or a parquet table."""

import gzip
import json
import zlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from dflash_mlx.errors import BadRequest
from dflash_mlx.system.installer import install_command

ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")
"""Suffixes of data files. A local file with another suffix is text with one row per line."""

_MAX_FILE = 2**27
"""Characters of a .json file, decompressed: 128 MiB, whose parsed values take 1 to 2 GB."""

_MAX_LINE = 2**26
"""Characters of one line: 64 MiB. A damaged or hostile .gz file can contain one endless line."""

_MAX_ROW_GROUP_BYTES = 2**31
"""Limit of a decompressed row group of a parquet file, the unit that pyarrow reads."""


def read_rows(file: Path) -> Iterator[Any]:
    """Yield the rows of `file`; its suffix selects the format, and blank lines are skipped.

    Raises:
        BadRequest: a parquet file without pyarrow installed.
        OSError, ValueError: the file cannot be read, or does not have the format of its suffix.
    """
    name = file.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        yield from _parquet(file)
        return
    try:
        yield from _lines(file, name)
    except (EOFError, zlib.error) as error:
        raise ValueError(f"it is truncated or damaged: {error}") from error


def _lines(file: Path, name: str) -> Iterator[Any]:
    with (
        gzip.open(file, "rt", encoding="utf-8")
        if file.suffix == ".gz"
        else file.open(encoding="utf-8") as lines
    ):
        if name.endswith(".json"):
            text = lines.read(_MAX_FILE + 1)
            if len(text) > _MAX_FILE:
                raise ValueError(f"it has more than {_MAX_FILE} characters; use .jsonl")
            values = json.loads(text)
            yield from values if isinstance(values, list) else [values]
            return
        while line := lines.readline(_MAX_LINE + 1):
            if len(line) > _MAX_LINE:
                raise ValueError(f"a line has more than {_MAX_LINE} characters")
            if line.strip():
                yield json.loads(line) if name.endswith(".jsonl") else line


def _parquet(file: Path) -> Iterator[Any]:
    try:
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError as error:
        raise BadRequest(
            f"{file.name} is a parquet file and needs pyarrow: {install_command('pyarrow')}; or "
            "give a .jsonl file"
        ) from error
    table = parquet.ParquetFile(file)
    for index in range(table.metadata.num_row_groups):
        if not 0 <= table.metadata.row_group(index).total_byte_size <= _MAX_ROW_GROUP_BYTES:
            raise ValueError(f"row group {index} has more than {_MAX_ROW_GROUP_BYTES} bytes")
    for batch in table.iter_batches(batch_size=256):
        yield from batch.to_pylist()
