"""What a process inherits: closed streams, ASCII locales, missing folders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ASCII = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def run(tmp_path, *arguments, command="tests.commands.scripted_cli", **options):
    settings = {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("LC_")}
    return subprocess.run(
        [sys.executable, "-m", command, *arguments],
        capture_output=True,
        cwd=options.pop("cwd", ROOT),
        env={**inherited, **settings},
        timeout=120,
        check=False,
        **options,
    )


def test_a_closed_stdin_is_an_empty_prompt(tmp_path):
    """A parent that closes stdin ended the command in a traceback."""
    done = run(tmp_path, "generate", "-", preexec_fn=lambda: os.close(0))
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"dflash-mlx: the prompt is empty; give it some text\n"


def test_a_closed_stdin_ends_a_chat(tmp_path):
    """The same for a chat."""
    done = run(tmp_path, "chat", preexec_fn=lambda: os.close(0))
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["naïve", "日本語"])
def test_utf8_is_read_in_an_ascii_locale(tmp_path, text):
    """A container without a locale refused UTF-8 in arguments and pipes."""
    done = run(tmp_path, "generate", text, "--max-tokens", "2", env=ASCII)
    assert done.returncode == 0, done.stderr
    assert f"prompt {len(text)} new".encode() in done.stderr
    done = run(tmp_path, "chat", "--max-tokens", "2", env=ASCII, input=f"{text}\n".encode())
    assert done.returncode == 0, done.stderr
    assert f"prompt {len(text)} new".encode() in done.stderr


def test_bytes_that_are_not_utf8_are_one_line(tmp_path):
    """An argument in another encoding must be refused by name."""
    done = run(tmp_path, "generate", b"na\xefve")
    assert done.returncode == 2
    assert b"not UTF-8" in done.stderr and done.stderr.count(b"\n") == 1


def test_a_deleted_working_folder_is_one_line(tmp_path):
    """transformers cannot be imported there and gave forty lines of traceback."""
    script = (
        "import os, sys, tempfile; from dflash_mlx.commands import main\n"
        "gone = tempfile.mkdtemp(); os.chdir(gone); os.rmdir(gone)\n"
        "sys.exit(main(['generate', 'hi']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"dflash-mlx: the working folder no longer exists")


def test_a_missing_tmpdir_is_replaced(tmp_path):
    """MLX's compiler needs a temporary folder; it ended in a traceback without TMPDIR's."""
    script = (
        "import sys; from dflash_mlx.commands.environment import check_folders\n"
        "check_folders()\n"
        "import mlx.core as mx; print(mx.compile(lambda x: mx.exp(x) * x + 1)(mx.ones(3)).sum())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TMPDIR": "/no/such/folder"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_debug_adds_the_traceback(tmp_path):
    """Without it the cause of a wrapped error cannot be found."""
    done = run(tmp_path, "--debug", "generate", " ")
    assert done.returncode == 2
    assert b"Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(b"dflash-mlx: the prompt is empty")
