"""Write docs/cli.md: the help text of every command.

python scripts/update_cli.py          # rewrite
python scripts/update_cli.py --check  # fail if the file is out of date
"""

import os
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
COMMANDS = ("chat", "generate", "bench", "convert", "train", "doctor", "models", "simulate")
INTRODUCTION = """# Command line

The output of `dflash-mlx --help` and of `dflash-mlx COMMAND --help`, written by
`python scripts/update_cli.py`. A failed command prints one line on stderr and exits with code 2;
each command's help names its other exit codes.
"""


def help_text(*command: str) -> str:
    """Return the output of `dflash-mlx COMMAND --help` at 80 columns."""
    program = "from dflash_mlx.commands import main; raise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, *command, "--help"],
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=True,
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def page() -> str:
    """Return the text of docs/cli.md."""
    parts = [INTRODUCTION, f"```text\n{help_text()}\n```\n"]
    parts += [f"## {name}\n\n```text\n{help_text(name)}\n```\n" for name in COMMANDS]
    return "\n".join(parts)


def main() -> None:
    """Rewrite the page, or compare it with `--check`."""
    made = page()
    if "--check" not in sys.argv:
        PAGE.write_text(made, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != made:
        raise SystemExit("docs/cli.md is out of date: python scripts/update_cli.py")


if __name__ == "__main__":
    main()
