"""The command that installs a package into this Python environment."""

import importlib.util
import sys
from shlex import quote


def install_command(*packages: str, no_deps: bool = False) -> str:
    """Return the shell command that installs `packages` into this Python environment.

    The environment of a tool (pipx, uv tool) must be changed through that tool, and an
    environment made by uv has no pip.
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
