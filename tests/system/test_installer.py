"""Install hints that the reader can really type."""

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
def test_the_hint_matches_the_installation(monkeypatch, prefix, expected):
    """`pip install` into a tool's private environment is not the user's to do."""
    monkeypatch.setattr("sys.prefix", prefix)
    monkeypatch.setattr("sys.executable", "/bin/python")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert install_command("a>=1", "b", no_deps=True) == expected


def test_an_environment_without_pip_is_uvs(monkeypatch):
    """uv makes environments without pip; `python -m pip` fails in them."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert install_command("a").startswith("uv pip install --python ")
