"""The option of long runs."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz-minutes", type=float, help="fuzz for this long instead of 20 s")
    parser.addoption("--fuzz-seed", type=int, help="seed of a long run; default 1")
