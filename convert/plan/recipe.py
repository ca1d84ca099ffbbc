"""Recipes: which quantization each weight gets, by its role in the model and by its path.

It must not know values of weights; `auto_recipe` derives a recipe from values.
"""

import fnmatch
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash_mlx.convert.options import MODES, Quantization, quantization
from dflash_mlx.errors import BadRequest
from dflash_mlx.system.foreign import quoted, reading

ROLES = ("embedding", "head", "attention", "mlp", "fc", "norm", "other")
NAMES = ("uniform", "head8", "draft", "auto")


@dataclass(frozen=True)
class QuantizationRecipe:
    """Quantization by path pattern, then by role, then `base`; the first match applies.

    None in place of a quantization leaves the weight unquantized.
    """

    name: str
    base: Quantization | None
    roles: Mapping[str, Quantization | None] = field(default_factory=dict)
    paths: Mapping[str, Quantization | None] = field(default_factory=dict)

    def choose(self, path: str, role: str) -> Quantization | None:
        """Return the quantization of the module at `path`."""
        for pattern, found in self.paths.items():
            if fnmatch.fnmatchcase(path, pattern):
                return found
        return self.roles.get(role, self.base)

    def names_module(self, path: str, role: str) -> bool:
        """Return whether the recipe has an entry for this module's role or path."""
        return role in self.roles or any(fnmatch.fnmatchcase(path, item) for item in self.paths)

    def check_patterns(self, paths: Iterable[str]) -> None:
        """Check that every path pattern matches at least one module.

        Raises:
            BadRequest: a pattern matches no module, which usually is a typing error.
        """
        known = list(paths)
        for pattern in self.paths:
            if not fnmatch.filter(known, pattern):
                raise BadRequest(
                    f"recipe {self.name!r} has the path pattern {quoted(pattern)}, which matches "
                    f"no weight of this model; a path here is, for example, "
                    f"{known[0] if known else 'model.layers.0.mlp.up_proj'}"
                )


def role_of(path: str, tied: bool) -> str:
    """Return the role of a module or tensor; a tied embedding has the role of the head."""
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


def named_recipe(name: str | None, base: Quantization | None) -> QuantizationRecipe:
    """Return the recipe called `name`, or the recipe in the TOML file `name`.

    Raises:
        BadRequest: there is no such recipe or file, or the file is invalid.
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
            f"recipe {quoted(name)} is neither a file nor one of {', '.join(NAMES)}; auto takes "
            "an average number of bits, for example auto:4.5"
        )
    return read_recipe(path, base)


def read_recipe(path: Path, base: Quantization | None) -> QuantizationRecipe:
    """Return the recipe in a TOML file with the tables `roles` and `paths`.

    A value is a number of bits, `false` for no quantization, or a table of bits, group_size and
    mode.

    Raises:
        BadRequest: the file is not a recipe.
    """
    with reading(path, "the recipe", "see docs/convert.md for the format", BadRequest):
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    if unknown := sorted(table.keys() - {"roles", "paths"}):
        raise BadRequest(
            f"recipe {path} has the table {quoted(unknown[0])}; it needs the tables roles and paths"
        )
    roles, paths = table.get("roles", {}), table.get("paths", {})
    if not isinstance(roles, dict) or not isinstance(paths, dict):
        raise BadRequest(f"recipe {path}: roles and paths must be tables; see docs/convert.md")
    if unknown := sorted(roles.keys() - set(ROLES)):
        raise BadRequest(
            f"recipe {path} has the role {quoted(unknown[0])}; roles are {', '.join(ROLES)}"
        )
    return QuantizationRecipe(
        path.name,
        base,
        {role: _entry(value, f"{path}: {role}", base) for role, value in roles.items()},
        {item: _entry(value, f"{path}: {item}", base) for item, value in paths.items()},
    )


def _entry(value: Any, where: str, base: Quantization | None) -> Quantization | None:
    """Return the quantization that a value of a recipe file stands for."""
    if value is False:
        return None
    if type(value) is int:
        group_size = base.group_size if base and base.mode == "affine" else None
        return quantization(value, group_size, None)
    if isinstance(value, dict) and not value.keys() - {"bits", "group_size", "mode"}:
        return quantization(value.get("bits"), value.get("group_size"), value.get("mode"))
    raise BadRequest(
        f"recipe {where} is {quoted(value)}; it needs a number of bits, false, or a table of "
        f"bits, group_size and mode (one of {', '.join(MODES)})"
    )
