"""Mutations of checkpoint files: bytes, JSON values, safetensors headers, missing files."""

import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    10**30,
    2.5,
    float("nan"),
    float("inf"),
    -float("inf"),
    1e308,
    "",
    "x",
    "../../etc/passwd",
    "a\0b",
    "\ud800",
    "9" * 5000,
    "x" * 100_000,
    [],
    [[]],
    [None],
    [1],
    ["x"] * 1000,
    {},
    {"x": 1},
]
"""Values of every JSON type, and the extremes of each."""


def mutate_bytes(raw: bytes, dice: random.Random) -> bytes:
    """Flip, cut, insert, repeat or overwrite bytes at one to four places."""
    data = bytearray(raw)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(data) + 1)
        n = min(dice.choice([1, 1, 2, 4, 8, 64]), len(data) - at)
        kind = dice.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            data[at:at] = bytes(dice.randrange(256) for _ in range(n))
        elif kind == 3:
            del data[at : at + n]
        elif kind == 4:
            data[at:at] = data[at : at + 64]
        elif kind == 5:
            data[at : at + n] = b"\xff" * n
        else:
            data[at : at + 8] = struct.pack("<Q", dice.choice([0, 2**31, 2**40, 2**63, 2**64 - 1]))
    return bytes(data)


def mutate_json(value: Any, dice: random.Random) -> Any:
    """Replace, remove or add one value of a JSON tree."""
    places: list[tuple[Any, Any]] = []

    def collect(item: Any) -> None:
        if isinstance(item, dict | list):
            keys = list(item) if isinstance(item, dict) else list(range(len(item)))
            for key in keys[:200]:
                places.append((item, key))
                collect(item[key])

    tree = json.loads(json.dumps(value))
    collect(tree)
    if not places or dice.random() < 0.03:
        return dice.choice(VALUES)
    parent, key = dice.choice(places)
    kind = dice.randrange(8)
    if kind == 0:
        del parent[key]
    elif kind == 1:
        donor, place = dice.choice(places)
        parent[key] = json.loads(json.dumps(donor[place])) if place in _keys(donor) else None
    elif kind == 2 and isinstance(parent, dict):
        parent["x" * dice.choice([1, 300])] = parent.pop(key)
    elif kind == 3 and isinstance(parent[key], int | float):
        parent[key] = parent[key] * dice.choice([-1, 0, 2, 1000, 0.5]) + dice.choice([0, 1, -1])
    else:
        parent[key] = dice.choice(VALUES)
    return tree


def _keys(item: Any) -> Any:
    return item if isinstance(item, dict) else range(len(item))


def json_text(value: Any, dice: random.Random) -> bytes:
    """Return a value as JSON, nested deeply or with a repeated key now and then."""
    text = json.dumps(value)
    if dice.random() < 0.03:
        depth = dice.choice([50, 900, 100_000])
        text = '{"x": ' + "[" * depth + text + "]" * depth + "}"
    elif dice.random() < 0.03 and text.startswith("{"):
        text = text[:-1] + ", " + text[1:]
    return text.encode("utf-8", "surrogatepass")


def mutate_safetensors(raw: bytes, dice: random.Random) -> bytes:
    """Mutate the header as JSON, its length, or the bytes of the file."""
    if dice.random() < 0.4:
        return mutate_bytes(raw, dice)
    try:
        (length,) = struct.unpack("<Q", raw[:8])
        text = json_text(mutate_json(json.loads(raw[8 : 8 + length]), dice), dice)
    except (ValueError, RecursionError, struct.error):  # mutated before
        return mutate_bytes(raw, dice)
    stated = len(text) if dice.random() < 0.95 else dice.choice([0, 2**31, 2**63, len(text) + 1])
    return struct.pack("<Q", stated) + text + raw[8 + length :]


def mutate_archive(raw: bytes, dice: random.Random) -> bytes:
    """Mutate one entry of a zip archive and keep the archive valid, or mutate its bytes."""
    if dice.random() < 0.3:
        return mutate_bytes(raw, dice)
    made = io.BytesIO()
    how = zipfile.ZIP_STORED if dice.random() < 0.9 else zipfile.ZIP_DEFLATED
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive, zipfile.ZipFile(made, "w", how) as copy:
            chosen = dice.choice(archive.namelist())
            for name in archive.namelist():
                content = archive.read(name)
                copy.writestr(name, mutate_bytes(content, dice) if name == chosen else content)
    except (zipfile.BadZipFile, ValueError):  # mutated before
        return mutate_bytes(raw, dice)
    return made.getvalue()


def mutate_file(path: Path, dice: random.Random) -> None:
    """Mutate one file by its format, or replace it by something that is not a regular file."""
    odd = dice.random()
    if odd < 0.02:
        path.unlink()
    elif odd < 0.03:
        path.unlink()
        path.mkdir()
    elif odd < 0.04:
        path.unlink()
        path.symlink_to(path.name)
    elif odd < 0.05:
        path.write_bytes(b"")
    else:
        path.write_bytes(_mutator(path, dice)(path.read_bytes(), dice))


def _mutator(path: Path, dice: random.Random) -> Callable[[bytes, random.Random], bytes]:
    if path.suffix == ".safetensors":
        return mutate_safetensors
    if path.suffix == ".bin":
        return mutate_archive
    if path.suffix == ".json" and dice.random() < 0.8:

        def mutate(raw: bytes, dice: random.Random) -> bytes:
            try:
                return json_text(mutate_json(json.loads(raw), dice), dice)
            except (ValueError, RecursionError):  # mutated before
                return mutate_bytes(raw, dice)

        return mutate
    return mutate_bytes
