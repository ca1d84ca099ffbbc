"""A small coding agent on a local model: it reads and edits files of one folder with tools.

    python examples/agent.py --model qwen3-8b "Add a docstring to every function in util.py"

The model and its draft run in this process. No prompt token is read twice: each turn reuses the KV
rows of the turns before it.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dflash_mlx

SYSTEM = """You are a coding agent. Work only through the tools. Read a file before you edit it,
make the smallest edit that does the task, and end with one sentence on what you changed."""

MAX_TURNS = 20
MAX_CHARACTERS = 20_000


class Tools:
    """The tools of the agent, confined to one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()

    def list_files(self) -> str:
        """List the files of the folder."""
        files = (path for path in self._folder.rglob("*") if path.is_file())
        return "\n".join(sorted(str(path.relative_to(self._folder)) for path in files))

    def read_file(self, path: str) -> str:
        """Return the text of a file."""
        return self._inside(path).read_text(encoding="utf-8")[:MAX_CHARACTERS]

    def replace_text(self, path: str, old: str, new: str) -> str:
        """Replace a text that occurs exactly once in a file."""
        file = self._inside(path)
        text = file.read_text(encoding="utf-8")
        if text.count(old) != 1:
            return f"error: the text occurs {text.count(old)} times; give one that occurs once"
        file.write_text(text.replace(old, new), encoding="utf-8")
        return "done"

    def _inside(self, path: str) -> Path:
        found = (self._folder / path).resolve()
        if not found.is_relative_to(self._folder):
            raise ValueError(f"{path} is outside of the folder")
        return found

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Run one tool call; an error is text that the model can act on."""
        tool: Callable[..., str] | None = getattr(self, name, None)
        if name not in DESCRIPTIONS or tool is None:
            return f"error: there is no tool {name}"
        try:
            return tool(**arguments)
        except (OSError, TypeError, ValueError) as error:
            return f"error: {error}"


PATH = {"type": "string", "description": "path of the file"}
DESCRIPTIONS: dict[str, dict[str, Any]] = {
    "list_files": {},
    "read_file": {"path": PATH},
    "replace_text": {
        "path": PATH,
        "old": {"type": "string", "description": "text that occurs once in the file"},
        "new": {"type": "string", "description": "text to put in its place"},
    },
}


def tool_definitions() -> list[dict[str, Any]]:
    """Return the tools as OpenAI's API describes them."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": getattr(Tools, name).__doc__,
                "parameters": {"type": "object", "properties": fields, "required": list(fields)},
            },
        }
        for name, fields in DESCRIPTIONS.items()
    ]


def run(
    engine: dflash_mlx.Engine,
    task: str,
    folder: Path,
    config: dflash_mlx.GenerationConfig | None = None,
) -> str:
    """Work on `task` until the model answers without a tool call; return that answer."""
    tools, offered = Tools(folder), tool_definitions()
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}]
    for _ in range(MAX_TURNS):
        result = engine.chat(messages, offered, config=config)
        messages.append(result.message)
        if not result.tool_calls:
            return result.content
        for call in result.tool_calls:
            print(f"{call.name}({', '.join(map(str, call.arguments.values()))[:60]})", flush=True)
            text = tools.call(call.name, dict(call.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
    return f"stopped after {MAX_TURNS} turns"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", help="what the agent should do")
    parser.add_argument("--model", default="qwen3-8b", help="nickname, folder or hub id")
    parser.add_argument("--folder", type=Path, default=Path(), help="folder to work in")
    options = parser.parse_args()
    with dflash_mlx.load(options.model) as loaded:
        print(run(loaded, options.task, options.folder))
