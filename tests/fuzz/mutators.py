"""Mutators by format. Each takes a `Random` and valid content and returns other content."""

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

DEEP = 3000
"""Brackets of a deeply nested value: above Python's recursion limit."""


def interesting_values(dice: Random) -> list[Any]:
    """Return values that readers are known to handle badly."""
    return [
        *(
            None,
            True,
            False,
            0,
            1,
            -1,
            2,
            3,
            7,
            255,
            2**31 - 1,
            2**31,
            2**32,
            2**63,
            2**64,
            10**400,
        ),
        *(-0.0, 0.5, 1.0, 1e-30, 1e30, 1e308, float("nan"), float("inf"), -float("inf")),
        *(
            "",
            "x",
            "yarn",
            "None",
            "\0",
            "\ud800",
            "é" * 3,
            "a" * 5000,
            "../../etc/passwd",
            "{{ 1/0 }}",
        ),
        *([], {}, [[]], [None], [1, 2, 3], ["x"], {"x": 1}, {"": None}, [[[1]]]),
        dice.randrange(1000),
        dice.random() * 10,
    ]


def mutated_json(dice: Random, value: Any, n_changes: int | None = None) -> Any:
    """Return a copy of a JSON value with one to three places changed."""
    value = json.loads(json.dumps(value))
    for _ in range(n_changes or dice.choice((1, 1, 1, 2, 3))):
        value = _changed(dice, value)
    return value


def _changed(dice: Random, value: Any) -> Any:
    places = list(_places(value, ()))
    if not places:
        return dice.choice(interesting_values(dice))
    path = dice.choice(places)
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    key = path[-1]
    action = dice.randrange(8)
    if action == 0:
        del parent[key]
    elif action == 1 and isinstance(parent, dict):
        parent[f"{key}{dice.choice(('_', 's', ' '))}"] = parent.pop(key)
    elif action == 2:
        parent[key] = [parent[key]] * dice.choice((0, 1, 2, 50))
    elif action == 3:
        parent[key] = {str(key): parent[key]}
    elif action == 4 and isinstance(parent[key], int | float) and abs(parent[key]) < 1e300:
        parent[key] = dice.choice((-1, 0.5, 2, 10, 1000, 1.0)) * parent[key]
    elif action == 5 and isinstance(parent[key], str):
        parent[key] = dice.choice((parent[key] * 2, parent[key][:-1], parent[key].upper(), 5))
    elif action == 6:
        other = dice.choice(places)
        source = value
        for step in other[:-1]:
            source = source[step]
        parent[key] = json.loads(json.dumps(source[other[-1]]))
    else:
        parent[key] = dice.choice(interesting_values(dice))
    return value


def _places(value: Any, path: tuple[Any, ...]) -> Any:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = list(enumerate(value))[:50]
    for key, inner in items:
        yield (*path, key)
        yield from _places(inner, (*path, key))


def json_text(dice: Random, value: Any) -> bytes:
    """Return a mutated JSON file: usually other values, sometimes other bytes."""
    roll = dice.randrange(20)
    if roll == 0:
        return dice.choice(
            (b"[" * DEEP, b'{"a":' * DEEP, b"", b"null", b"3", b"[]", b'""', b"\xff\xfe")
        )
    text = json.dumps(mutated_json(dice, value)).encode("utf-8", "surrogatepass")
    if roll == 1:
        return mutated_bytes(dice, text)
    if roll == 2:  # a name twice
        return text[:-1] + b", " + text[1:] if text[:1] == b"{" else text
    return text


def mutated_bytes(dice: Random, data: bytes, within: int | None = None) -> bytes:
    """Return `data` with bytes flipped, removed, inserted or cut, in its first `within` bytes."""
    raw = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 4, 16))):
        end = min(within or len(raw), len(raw))
        if not end:
            break
        at = dice.randrange(end)
        action = dice.randrange(7)
        if action == 0:
            raw[at] ^= 1 << dice.randrange(8)
        elif action == 1:
            raw[at] = dice.randrange(256)
        elif action == 2:
            del raw[at : at + dice.choice((1, 4, 8, 100))]
        elif action == 3:
            raw[at:at] = bytes(dice.randrange(256) for _ in range(dice.choice((1, 4, 8))))
        elif action == 4:
            raw[at : at + 8] = struct.pack(
                "<Q", dice.choice((0, 1, 2**31, 2**32, 2**62, 2**64 - 1))
            )
        elif action == 5:
            raw[at : at + 4] = struct.pack("<I", dice.choice((0, 1, 2, 8, 9, 2**31, 2**32 - 1)))
        elif dice.randrange(4) == 0:
            del raw[at:]
    return bytes(raw)


_DTYPES = ("F16", "BF16", "F64", "U8", "I64", "f32", "X")


def mutated_safetensors(dice: Random, data: bytes) -> bytes:
    """Return a safetensors file with another header, other offsets, or other bytes."""
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    action = dice.randrange(8)
    if action == 0:
        return mutated_bytes(dice, data, 8 + length)
    if action == 1:
        body = dice.choice((body[:-1], body + b"\0", body[: len(body) // 2], body * 2, b""))
    elif action == 2:
        header = mutated_json(dice, header)
    else:
        entry = header[dice.choice([name for name in header if name != "__metadata__"])]
        offsets, shape = entry["data_offsets"], entry["shape"]
        step = dice.choice((-8, -4, -1, 1, 4, 8, 64))
        change: list[Callable[[], Any]] = [
            lambda: entry.update(data_offsets=[value + step for value in offsets]),
            lambda: entry.update(data_offsets=[offsets[0] + step, offsets[1]]),
            lambda: entry.update(data_offsets=[offsets[0], offsets[1] + step]),
            lambda: entry.update(
                data_offsets=dice.choice(list(header.values())).get("data_offsets")
            ),
            lambda: entry.update(shape=[*shape, 1]),
            lambda: entry.update(shape=shape[::-1]),
            lambda: entry.update(shape=[dice.choice((0, 1, -1, 2**40, 2**63)), *shape]),
            lambda: entry.update(
                dtype=dice.choice(("F16", "BF16", "F64", "U8", "I64", "f32", "X"))
            ),
        ]
        dice.choice(change)()
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    if dice.randrange(10) == 0:
        text += b" " * dice.choice((1, 7, 100))
    length = (
        len(text) if dice.randrange(20) else dice.choice((0, 1, len(text) - 1, 2**40, 2**64 - 1))
    )
    return struct.pack("<Q", length) + text + body
