"""Install commands match the way this environment was made."""

import pytest

from dflash_mlx.system.installer import install_command


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("/home/me/venv", "/bin/python -m pip install --no-deps 'a>=1' b"),
        (
            "/home/me/.local/pipx/venvs/dflash-mlx",
            "pipx inject --pip-args=--no-deps dflash-mlx 'a>=1' b",
        ),
        (
            "/home/me/.local/share/uv/tools/dflash-mlx",
            "uv pip install --python /bin/python --no-deps 'a>=1' b",
        ),
    ],
)
def test_the_command_matches_the_environment(monkeypatch, prefix, expected):
    """`pip install` into the environment of pipx or uv tool bypasses those tools."""
    monkeypatch.setattr("sys.prefix", prefix)
    monkeypatch.setattr("sys.executable", "/bin/python")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert install_command("a>=1", "b", no_deps=True) == expected


def test_an_environment_without_pip_uses_uv(monkeypatch):
    """`python -m pip` fails in environments that uv made."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert install_command("a").startswith("uv pip install --python ")
