"""Functions that transformers gives chat templates, with the same results.

It must not know messages or limits other than those of single values.
"""

import json
from typing import Any

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

from dflash_mlx.loading.template_limits import MAX_INT_ARGUMENT, TemplateLimit


def raise_exception(message: Any) -> None:
    raise TemplateError(str(message))


class TemplateDict:
    """The name `dict` in templates, without access to the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without escaping HTML characters, which jinja's own filter does."""
    if isinstance(indent, int) and abs(indent) > MAX_INT_ARGUMENT // 1000:
        raise TemplateLimit("it formats with too large a width")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class TemplateNamespace(Namespace):
    """Jinja's namespace without names that start with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        instance, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(instance, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}; names must not start with _")
