"""`dflash-mlx convert`: arguments, output and exit codes."""

import json

import pytest

from dflash_mlx.commands import main
from dflash_mlx.pairs.converted import converted, remember
from tests.convert.checkpoints import draft_folder


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    return draft_folder(tmp_path / "source")


def test_json_is_the_only_thing_on_stdout(source, tmp_path, capsys):
    """A stray line on stdout breaks scripts that parse it."""
    code = main(["convert", str(source), "-o", str(tmp_path / "out"), "--bits", "8", "--json"])
    captured = capsys.readouterr()
    assert code == 0
    table = json.loads(captured.out)
    assert table["out"] == str(tmp_path / "out")
    assert table["models"][0]["check"]["n_tensors"] == 25
    assert "recipe   uniform" in captured.err
    assert "done: " in captured.err


def test_a_dry_run_prints_the_exact_size_and_writes_nothing(source, tmp_path, capsys):
    """An estimate that is 10% too low fills a disk."""
    arguments = ["convert", str(source), "-o", str(tmp_path / "out"), "--json"]
    assert main([*arguments, "--dry-run"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert not (tmp_path / "out").exists()
    assert main(arguments) == 0
    header = 8 + int.from_bytes((tmp_path / "out/model.safetensors").read_bytes()[:8], "little")
    size = (tmp_path / "out/model.safetensors").stat().st_size
    assert plan["disk_bytes"] == size - header
    assert plan["peak_bytes"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mode", "mxfp4", "--bits", "8"], "leave out --bits"),
        (["--bits", "7"], "needs one of 2, 3, 4"),
        (["--recipe", "nope"], "neither a file nor one of"),
        (["--revision", "abc"], "local path"),
        (["--draft-revision", "abc"], "--draft"),
    ],
)
def test_a_bad_option_is_one_line_and_exit_code_two(source, tmp_path, capsys, arguments, words):
    """A bad option must write nothing to stdout or the disk."""
    code = main(["convert", str(source), "-o", str(tmp_path / "out"), *arguments])
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert words in captured.err.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_an_interrupt_prints_how_to_continue(source, tmp_path, capsys, monkeypatch):
    """After Ctrl-C a user must learn that no work was lost."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("dflash_mlx.convert.run.write_weights", interrupted)
    assert main(["convert", str(source), "-o", str(tmp_path / "out")]) == 130
    assert "continues where it stopped" in capsys.readouterr().err


def test_a_converted_folder_is_listed_until_it_is_removed(source, tmp_path):
    """`dflash-mlx models` must list converted folders that exist."""
    out = tmp_path / "out"
    main(["convert", str(source), "-o", str(out), "--no-verify"])
    settings = tmp_path / "settings/dflash-mlx"
    assert converted(settings) == (out,)
    remember(out, settings)
    assert converted(settings) == (out,)
    out.rename(tmp_path / "elsewhere")
    assert converted(settings) == ()


def test_an_unwritable_list_does_not_fail_a_conversion(source, tmp_path, capsys):
    """A settings folder of another user ended a conversion in a traceback."""
    (tmp_path / "settings").mkdir(exist_ok=True)
    (tmp_path / "settings/dflash-mlx").write_text("a file")
    out = tmp_path / "out"
    assert main(["convert", str(source), "-o", str(out), "--no-verify"]) == 0
    assert "will not list" in capsys.readouterr().err
    assert (out / "model.safetensors").exists()


def test_a_dry_run_has_nothing_to_upload(source, capsys):
    """--upload was ignored in a dry run."""
    assert main(["convert", str(source), "--dry-run", "--upload", "me/model"]) == 2
    assert "--upload" in capsys.readouterr().err


def test_the_default_folder_is_named_for_what_it_holds(source, tmp_path, monkeypatch, capsys):
    """A fixed default name gave every conversion the same folder."""
    monkeypatch.chdir(tmp_path)
    assert main(["convert", str(source), "--no-verify"]) == 0
    assert (tmp_path / "source-draft-4bit/model.safetensors").exists()
    assert "source-draft-4bit" in capsys.readouterr().err
