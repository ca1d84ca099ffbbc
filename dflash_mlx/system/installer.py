"""How this installation is added to: the command a user of it can really type."""

import importlib.util
import sys
from shlex import quote


def install_command(*packages: str, no_deps: bool = False) -> str:
    """Return the command that brings `packages` into this Python, whoever manages it.

    A tool's own environment (pipx, uv tool) is not a user's to pip into, and one made by uv has
    no pip.
    """
    wanted, python = " ".join(quote(name) for name in packages), quote(sys.executable)
    prefix = sys.prefix.replace("\\", "/")
    if "/pipx/venvs/" in prefix:
        extra = " --pip-args=--no-deps" if no_deps else ""
        return f"pipx inject{extra} {prefix.rsplit('/', 1)[-1]} {wanted}"
    flag = "--no-deps " if no_deps else ""
    if "/uv/tools/" in prefix or importlib.util.find_spec("pip") is None:
        return f"uv pip install --python {python} {flag}{wanted}"
    return f"{python} -m pip install {flag}{wanted}"
