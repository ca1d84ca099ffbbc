"""Which quantization each weight gets, by the role that it plays in its model.

A recipe is a table from roles and paths to widths. It knows names, never values; `calibrate`
makes the table of the `auto` recipe from values.
"""

import fnmatch
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash_mlx.convert.options import MODES, Quantization, quantization
from dflash_mlx.errors import BadRequest

ROLES = ("embedding", "head", "attention", "mlp", "fc", "norm", "other")
NAMES = ("uniform", "head8", "draft", "auto")

Choice = Quantization | None
"""None leaves a weight as it is."""


@dataclass(frozen=True)
class QuantizationRecipe:
    """Widths by path pattern, then by role, then `base`; the first that matches counts."""

    name: str
    base: Choice
    roles: Mapping[str, Choice] = field(default_factory=dict)
    paths: Mapping[str, Choice] = field(default_factory=dict)

    def choose(self, path: str, role: str) -> Choice:
        """Return the quantization of the module at `path`."""
        for pattern, choice in self.paths.items():
            if fnmatch.fnmatchcase(path, pattern):
                return choice
        return self.roles.get(role, self.base)

    def singles_out(self, path: str, role: str) -> bool:
        """Whether the recipe says something of its own about this module."""
        return role in self.roles or any(fnmatch.fnmatchcase(path, item) for item in self.paths)

    def check_used(self, paths: Iterable[str]) -> None:
        """Check that every path pattern matches something.

        Raises:
            BadRequest: a pattern that matches no module; it is a typing error more often than not.
        """
        known = list(paths)
        for pattern in self.paths:
            if not fnmatch.filter(known, pattern):
                raise BadRequest(
                    f"recipe {self.name!r} names the path {pattern!r}, which no weight here has; "
                    f"paths look like {known[0] if known else 'model.layers.0.mlp.up_proj'}"
                )


def role_of(path: str, tied: bool) -> str:
    """Return the role of a module or tensor; a tied embedding is the head too."""
    parts = path.split(".")
    if "lm_head" in parts:
        return "head"
    if "embed_tokens" in parts or parts[-1] in ("wte", "embeddings"):
        return "head" if tied else "embedding"
    if any("norm" in part for part in parts):
        return "norm"
    if parts[-1] == "fc" or parts[-2:-1] == ["fc"]:
        return "fc"
    if any("attn" in part or "attention" in part for part in parts) and not any(
        "conv" in part for part in parts
    ):
        return "attention"
    if any(part in ("mlp", "feed_forward", "ffn", "block_sparse_moe") for part in parts):
        return "mlp"
    return "other"


def named_recipe(name: str | None, base: Choice) -> QuantizationRecipe:
    """Return the recipe called `name`, or read from the TOML file of that name.

    Raises:
        BadRequest: there is no such recipe, or the file is none.
    """
    if name is None or name == "uniform":
        return QuantizationRecipe("uniform", base)
    group_size = base.group_size if base else 64
    eight, four = Quantization(8, group_size), Quantization(4, group_size)
    if name == "head8":
        return QuantizationRecipe(name, base, {"embedding": eight, "head": eight})
    if name == "draft":
        return QuantizationRecipe(name, base, {"fc": eight, "mlp": four}, {"*.o_proj": eight})
    path = Path(name)
    if not path.is_file():
        raise BadRequest(
            f"recipe {name!r} is neither a file nor one of {', '.join(NAMES)}; auto takes an "
            "average, as in auto:4.5"
        )
    return read_recipe(path, base)


def read_recipe(path: Path, base: Choice) -> QuantizationRecipe:
    """Return the recipe in a TOML file with tables `roles` and `paths`.

    A width is a number of bits, `false` for none, or a table of bits, group_size and mode.

    Raises:
        BadRequest: the file is no recipe.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise BadRequest(f"recipe {path} is no TOML ({error}); see docs/convert.md") from error
    if unknown := sorted(table.keys() - {"roles", "paths"}):
        raise BadRequest(f"recipe {path} has {unknown[0]!r}; it needs the tables roles and paths")
    roles, paths = table.get("roles", {}), table.get("paths", {})
    if not isinstance(roles, dict) or not isinstance(paths, dict):
        raise BadRequest(f"recipe {path}: roles and paths need to be tables")
    if unknown := sorted(roles.keys() - set(ROLES)):
        raise BadRequest(f"recipe {path} has the role {unknown[0]!r}; roles are {', '.join(ROLES)}")
    return QuantizationRecipe(
        path.name,
        base,
        {role: _width(value, f"{path}: {role}", base) for role, value in roles.items()},
        {item: _width(value, f"{path}: {item}", base) for item, value in paths.items()},
    )


def _width(value: Any, where: str, base: Choice) -> Choice:
    if value is False:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return quantization(
            value, base.group_size if base and base.mode == "affine" else None, None
        )
    if isinstance(value, dict) and not value.keys() - {"bits", "group_size", "mode"}:
        return quantization(value.get("bits"), value.get("group_size"), value.get("mode"))
    raise BadRequest(
        f"recipe {where} is {value!r}; it needs bits, false, or bits, group_size and mode "
        f"(one of {', '.join(MODES)})"
    )
