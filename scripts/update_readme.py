"""Write the generated parts of README.md: help texts, families.

python scripts/update_readme.py          # rewrite
python scripts/update_readme.py --check  # fail if something is out of date
"""

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
COMMANDS = ("chat", "generate", "bench", "convert", "train", "doctor", "models", "simulate")


def help_text(*command: str) -> str:
    """Return what `dflash-mlx COMMAND --help` prints at 80 columns, "" for no command."""
    program = "from dflash_mlx.commands import main; raise SystemExit(main())"
    ran = subprocess.run(
        [sys.executable, "-c", program, *command, "--help"],
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"},
        capture_output=True,
        text=True,
    )
    return "\n".join(line.rstrip() for line in ran.stdout.strip().splitlines())


def generated_help() -> str:
    """Return the help of the whole program, a command folded each."""
    overview = help_text()
    parts = [f"```text\n$ dflash-mlx --help\n{overview}\n```"]
    for name in COMMANDS:
        if re.search(rf"^  {name}\b", overview, re.MULTILINE):
            parts.append(
                f"<details><summary><code>dflash-mlx {name} --help</code></summary>\n\n"
                f"```text\n{help_text(name)}\n```\n\n</details>"
            )
    return "\n\n".join(parts)


def with_generated(text: str) -> str:
    """Return README text with its generated parts made anew."""
    return re.sub(
        r"<!-- help -->.*<!-- /help -->",
        lambda _: f"<!-- help -->\n{generated_help()}\n<!-- /help -->",
        text,
        flags=re.DOTALL,
    )


def main() -> None:
    text = README.read_text(encoding="utf-8")
    made = with_generated(text)
    if "--check" in sys.argv:
        if made != text:
            raise SystemExit("README.md is out of date: python scripts/update_readme.py")
        return
    README.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
