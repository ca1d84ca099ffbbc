"""Mutated input files of the converter end in a result or in one line, within time and memory.

Run hours of it with: python -m tests.convert.test_fuzz --count 10000 --seed 1
"""

import argparse
import collections
import importlib.util
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import mlx_lm.models.llama
import mlx_lm.models.qwen3
import mlx_lm.models.qwen3_moe
import mlx_lm.tokenizer_utils  # noqa: F401  imported once rather than in every child

from dflash_mlx.convert.options import ConvertConfig
from dflash_mlx.convert.run import convert
from dflash_mlx.errors import DFlashError
from tests.convert.checkpoints import DRAFT2_CONFIG, draft_folder, draft_weights, run, target_folder
from tests.convert.mutations import mutate_bytes, mutate_file
from tests.gguf.writer import write_tiny

MAX_CPU_SECONDS = 20
MAX_SECONDS = 180
"""Wall time, for waiting without computing; the machine may have other load."""
MAX_BYTES = 2 << 30
MAX_MESSAGE = 2000
"""Characters of a message: a few quotations of 200 characters, and paths."""

OK, REFUSED, TRACEBACK, MESSAGE, MEMORY = 0, 2, 10, 11, 12
NAMES = {
    **{OK: "converted", REFUSED: "refused", TRACEBACK: "traceback", MESSAGE: "bad message"},
    **{MEMORY: "out of memory", -signal.SIGALRM: "hang", -signal.SIGXCPU: "hang"},
}
SMALL = {"num_hidden_layers": 1}


ENTRIES = {
    **{"target": "target", "experts": "experts", "draft": "draft", "draft 2": "draft2"},
    **{"GGUF": "gguf", "shards": "shards", "converted pair": "pair", "journal": "journal"},
    **{"recipe": "recipe", "tokenizer": "target"},
}
"""Entry points, with the folder of a valid input for each."""
if importlib.util.find_spec("torch"):
    import torch  # once rather than in every child

    ENTRIES["PyTorch"] = "torch"


def make_inputs(folder: Path) -> int:
    """Write one valid input for each entry point."""
    target = target_folder(folder / "target", "llama", **SMALL)
    target_folder(folder / "experts", "qwen3_moe", **SMALL)
    draft = draft_folder(folder / "draft")
    draft_folder(folder / "draft2", draft_weights(DRAFT2_CONFIG), DRAFT2_CONFIG)
    (folder / "gguf").mkdir()
    write_tiny(folder / "gguf/tiny.gguf", "llama", "Q4_1")
    run(target, folder / "shards", dequantize=True, shard_bytes=20_000)
    run(target_folder(folder / "three layers", "qwen3"), folder / "pair", draft=str(draft))
    _interrupted(draft, folder / "journal")
    shutil.copytree(draft, folder / "recipe")
    (folder / "recipe/mine.toml").write_text('[roles]\nmlp = 8\n[paths]\n"*.o_proj" = {bits = 6}\n')
    if "PyTorch" in ENTRIES:
        shutil.copytree(draft, folder / "torch")
        (folder / "torch/model.safetensors").unlink()
        state = {
            name: torch.tensor(array.astype(mx.float32).tolist()).to(torch.bfloat16)
            for name, array in draft_weights().items()
        }
        torch.save(state, folder / "torch/pytorch_model.bin")
    return OK


def _interrupted(source: Path, folder: Path) -> None:
    """Leave an interrupted conversion of `source` into `folder`/out."""

    def stop(report: object) -> None:
        if getattr(report, "phase", "") == "shard":
            raise KeyboardInterrupt

    shutil.copytree(source, folder / "source")
    config = ConvertConfig(str(folder / "source"), folder / "out", verify=False, shard_bytes=40_000)
    try:
        convert(config, stop)
    except KeyboardInterrupt:
        return
    raise AssertionError("the conversion was not interrupted")


def mutated(entry: str, folder: Path, dice: random.Random) -> ConvertConfig:
    """Mutate files of one entry point in `folder` and return the conversion to run."""
    out, options = folder.parent / "out", {"verify": dice.random() < 0.1}
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    source = folder
    if entry == "GGUF":
        source = files[0]
        raw = files[0].read_bytes()
        head = raw[: dice.choice([64, 512, 20_000])]
        files[0].write_bytes(mutate_bytes(head, dice) + raw[len(head) :])
        options["dequantize"] = dice.random() < 0.5
    elif entry == "journal":
        source, out = folder / "source", folder / "out"
        options |= {"verify": False, "shard_bytes": 40_000, "force": dice.random() < 0.5}
        _mutate_journal(folder, dice)
    elif entry == "recipe":
        path = folder / "mine.toml"
        path.write_bytes(mutate_bytes(path.read_bytes(), dice))
        options["recipe"] = str(path)
    elif entry == "tokenizer":
        mutate_file(dice.choice([path for path in files if "token" in path.name]), dice)
        options["recipe"] = "auto:4.5" if dice.random() < 0.5 else None
        options["verify"] = options["recipe"] is None
    else:
        for _ in range(dice.choice([1, 1, 2])):
            small = [path for path in files if path.suffix not in (".safetensors", ".bin")]
            chosen = dice.choice(small if dice.random() < 0.6 else files)
            if chosen.is_file():
                mutate_file(chosen, dice)
        if dice.random() < 0.3:
            options["dequantize"] = True
    return ConvertConfig(str(source), out, **options)


def _mutate_journal(folder: Path, dice: random.Random) -> None:
    journal, partial = folder / ".out.journal", folder / ".out.partial"
    kind = dice.randrange(5)
    if kind == 0:
        shutil.rmtree(partial)
        if dice.random() < 0.5:
            partial.write_text("a file")
    elif kind == 1:
        line = dice.choice([[], 1, {"file": 1}, {"file": "../x", "sha256": "0" * 64}])
        journal.write_text(journal.read_text() + json.dumps(line) + "\n")
    elif kind == 2:
        mutate_file(dice.choice(sorted(partial.glob("*.safetensors"))), dice)
    else:
        mutate_file(journal, dice)


def in_child(work: Callable[[], int], limited: bool = True) -> tuple[int, str]:
    """Run `work` in a forked process with limits; return its exit status and error output.

    This process must not evaluate MLX arrays: MLX's threads do not exist in a forked process.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        os.dup2(writer, 2)
        if not limited:
            os._exit(work())
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MAX_BYTES, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, resource.RLIM_INFINITY))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(MAX_SECONDS)
        os._exit(work())
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode(errors="replace")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def attempt(config: ConvertConfig) -> int:
    """Return the status of one conversion."""
    try:
        convert(config)
    except DFlashError as error:
        text = str(error)
        sys.stderr.write(text[:3000])
        return MESSAGE if "\n" in text or len(text) > MAX_MESSAGE else REFUSED
    except MemoryError:
        traceback.print_exc()
        return MEMORY
    except BaseException:  # noqa: BLE001  any other exception is the failure that is looked for
        traceback.print_exc()
        return TRACEBACK
    return OK


def fuzz(
    count: int, seed: int, report: Callable[[str, int, int, str], None]
) -> dict[str, collections.Counter[str]]:
    """Run `count` mutated inputs over all entry points; return the outcomes by entry point."""
    outcomes: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    with tempfile.TemporaryDirectory() as name:
        status, text = in_child(lambda: make_inputs(Path(name) / "inputs"), limited=False)
        assert status == OK, text
        entries = sorted(ENTRIES)
        for number in range(count):
            entry = entries[number % len(entries)]
            dice = random.Random(f"{seed} {number}")
            case = Path(name) / "case"
            shutil.copytree(Path(name) / "inputs" / ENTRIES[entry], case / "source", symlinks=True)
            config = mutated(entry, case / "source", dice)
            status, text = in_child(lambda config=config: attempt(config))
            outcomes[entry][NAMES.get(status, f"exit {status}")] += 1
            if status not in (OK, REFUSED):
                report(entry, number, status, text)
            shutil.rmtree(case)
    return outcomes


def test_mutated_inputs_end_in_a_result_or_one_line():
    """Hostile or damaged files gave tracebacks, hangs and allocations of gigabytes."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.convert.test_fuzz", "--count", "200"]
    # a process of its own, because this one has evaluated MLX arrays, and MLX does not survive fork
    ran = subprocess.run([*command, "--seed", "7"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    # a damaged journal is never a reason to refuse
    assert ran.stdout.count("'refused'") >= len(ENTRIES) - 1, ran.stdout


def main() -> None:
    """Print failures as they occur, and the outcomes by entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    started = time.monotonic()
    failed: list[int] = []

    def say(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def report(entry: str, number: int, status: int, text: str) -> None:
        failed.append(number)
        say(f"{entry}, input {number}: {NAMES.get(status, status)}\n{text[-1500:]}")

    outcomes = fuzz(options.count, options.seed, report)
    for entry, counts in outcomes.items():
        say(f"| {entry} | {dict(counts)} |")
    say(f"{options.count} inputs in {time.monotonic() - started:.0f} s")
    sys.exit(len(failed) > 0)


if __name__ == "__main__":
    main()
