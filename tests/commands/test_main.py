"""Every command: one line for an error, nothing on stdout, fast help."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_mlx import commands
from dflash_mlx.commands import app, main
from dflash_mlx.commands.app import as_flags
from dflash_mlx.commands.foreign_options import _REMEDIES
from dflash_mlx.commands.options import flag_of
from dflash_mlx.errors import BadRequest, PairMismatch

ROOT = Path(__file__).resolve().parents[2]


def refused(capsys, *arguments):
    """Run a command line that must be refused and return its one line of stderr."""
    code = main(list(arguments))
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.startswith("dflash-mlx: ")
    assert captured.err.count("\n") == 1 and captured.err.endswith("\n")
    return captured.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("nonsense", "nonsense"),
        ("--nonsense", "--nonsense"),
        ("generate", "prompt"),
        ("generate hi --nonsense", "--nonsense"),
        ("generate hi --max-tokens", "--max-tokens"),
        ("generate hi --max-tokens many", "--max-tokens"),
        ("generate hi --max-tokens 0", "max_tokens is 0"),
        ("generate hi --temperature -1", "temperature is -1"),
        ("generate hi --temperature nan", "temperature is nan"),
        ("generate hi --temperature 1e9", "temperature is 1000000000"),
        ("generate hi --top-p 0", "top_p is 0"),
        ("generate hi --top-k -1", "top_k is -1"),
        ("generate hi --min-p 2", "min_p is 2"),
        ("generate hi --repetition-penalty 0", "repetition_penalty is 0"),
        ("generate hi --seed -1", "seed is -1"),
        ("generate hi --logit-bias 5", "--logit-bias"),
        ("generate hi --logit-bias x=1", "--logit-bias"),
        ("generate hi --logit-bias 5=inf", "logit_bias"),
        ("generate hi --block-size 0", "block_size is 0"),
        ("generate hi --block-size many", "--block-size"),
        ("generate hi --block-size 4 --draft none", "--block-size 4"),
        ("generate hi --blas fast", "--blas"),
        ("generate hi --reasoning-effort huge", "--reasoning-effort"),
        ("generate hi --kernels fast", "--kernels"),
        ("bench --kernels fast", "--kernels"),
        ("generate hi --system x --no-chat-template", "--system"),
        ("generate hi --thinking --no-chat-template", "--thinking"),
        ("generate hi" + " --stop x" * 17, "stop"),
        ("generate hi there", "there"),
        ("chat hi", "hi"),
        ("doctor --context 0", "context is 0"),
        ("models --all", "--all"),
    ],
)
def test_a_wrong_argument_is_one_line_that_names_it(capsys, arguments, named):
    """A usage screen or a traceback hid the cause; a second line broke scripts."""
    assert named in refused(capsys, *arguments.split()).replace("PROMPT", "prompt")


def test_an_empty_prompt_is_refused(capsys):
    """A prompt of spaces was answered."""
    assert "empty" in refused(capsys, "generate", "  ")


@pytest.mark.parametrize("command", ["generate hi", "chat"])
@pytest.mark.parametrize("option", sorted(_REMEDIES))
def test_an_option_of_other_programs_is_refused_with_what_to_do(capsys, option, command):
    """Accepting and ignoring `--kv-bits` misleads; "no such option" gives no direction."""
    line = refused(capsys, *command.split(), option, "1")
    assert f"{option} is not supported: " in line


@pytest.mark.parametrize("command", app.COMMANDS)
def test_no_option_is_both_offered_and_refused(command):
    """An option in both lists would be refused although it exists."""
    parameters = inspect.signature(as_flags(app._command(command))).parameters.values()
    flags = {flag_of(item.name) for item in parameters if item.default is not item.empty}
    assert not flags & _REMEDIES.keys()


@pytest.mark.parametrize("command", ["generate hi", "chat", "doctor"])
def test_a_misspelled_nickname_is_corrected(capsys, home, command):
    """A missing hyphen in a nickname led to a network error."""
    line = refused(capsys, *command.split(), "--model", "smolm2-135")
    assert "smollm2-135m" in line.partition("did you mean")[2]


@pytest.mark.parametrize("command", ["generate hi", "chat"])
def test_what_loading_refuses_is_one_line(loads, capsys, command):
    """A damaged weight file ended in a traceback."""
    assert main([*command.split(), "--model", "bad"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1].startswith("dflash-mlx: bad.safetensors is not readable")


def test_a_message_of_several_lines_becomes_one(capsys, monkeypatch):
    """Messages of other libraries contain line breaks."""
    monkeypatch.setattr(app, "run", lambda arguments: (_ for _ in ()).throw(BadRequest("a\n  b")))
    assert refused(capsys) == "dflash-mlx: a b\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (BrokenPipeError(), 141), (PairMismatch("x"), 2)],
)
def test_exit_codes(capsys, monkeypatch, error, code):
    """Scripts distinguish an interrupt, a closed pipe and a failure by the exit code."""

    def run(arguments):
        raise error

    monkeypatch.setattr(app, "run", run)
    assert main([]) == code
    assert capsys.readouterr().out == ""


def test_a_bug_is_not_hidden(monkeypatch):
    """A bug printed as a user's error is never reported."""
    monkeypatch.setattr(app, "run", lambda arguments: {}["missing"])
    with pytest.raises(KeyError):
        main([])


@pytest.mark.parametrize("command", ["", *app.COMMANDS])
def test_help_imports_no_model_machinery(command):
    """Importing MLX and transformers delayed the help by a second."""
    heavy = ("mlx.core", "mlx_lm", "transformers", "huggingface_hub", "numpy", "pydantic")
    code = (
        "import sys; from dflash_mlx.commands import main\n"
        f"assert main({[*command.split(), '--help']!r}) == 0\n"
        f"sys.stderr.write(repr([name for name in {heavy} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: dflash-mlx")
    assert done.stderr == "[]"


def test_every_command_has_a_description(capsys):
    """A list of names without descriptions does not help to choose."""
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed and text in listed for name, text in app.COMMANDS.items())


def test_the_version_is_printed(capsys):
    """Bug reports need the version."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("dflash-mlx 0.")


def test_the_launcher_says_how_to_install():
    """In a checkout without an install, the launcher ended in an import error."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(ROOT / "cli.py"), "chat"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == "dflash-mlx is not installed here; run: pip install -e .\n"


def test_the_launcher_launches():
    """`python cli.py` must behave like the installed command."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), "--version"], capture_output=True, text=True
    )
    assert done.stdout.startswith("dflash-mlx 0.")


def test_a_full_disk_is_one_line():
    """Writing to a full disk ended in a traceback."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("only Linux has /dev/full")
    with full.open("w") as out:
        done = subprocess.run(
            [sys.executable, str(ROOT / "cli.py"), "--help"],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "dflash-mlx: the output cannot be written: No space left on device; free some disk space"
    ]


def test_closed_streams_are_not_written_to(monkeypatch):
    """Python sets streams that the parent closed to None, which has no `write`."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert commands.main(["nonsense"]) == 2
