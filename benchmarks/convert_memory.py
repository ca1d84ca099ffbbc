"""How much memory and time does `dflash-mlx convert` take, compared with mlx-lm?

Writes sharded bfloat16 qwen3 checkpoints with random weights (3 GB; 9 GB with an embedding of
1.2 GB) and converts each to 4 bits with both converters in turns, each run in its own process. The
peak is the kernel's maximum resident size. The disk of --folder needs three times the size of a
checkpoint; all files are removed at the end.

    python benchmarks/convert_memory.py --sizes 3 9 --rounds 2
"""

import argparse
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

SHAPES = {
    # gigabytes: hidden, ffn, layers, heads, key/value heads, vocabulary
    "3": (2560, 9728, 11, 32, 8, 151936),
    "9": (3968, 12288, 21, 32, 8, 151936),
    "1": (1536, 4096, 10, 12, 4, 151936),
    "tiny": (256, 512, 2, 4, 2, 2048),
}
SHARD_BYTES = 2_000_000_000
OURS = "dflash-mlx"
THEIRS = "mlx-lm"


def main() -> None:
    """Run the comparison and print one line per run, a table, and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", nargs="+", default=["3"], choices=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--folder", type=Path, help="working folder; default: system temporary folder"
    )
    parser.add_argument(
        "--verify", action="store_true", help="also run dflash-mlx with verification"
    )
    options = parser.parse_args()
    rows = []
    for size in options.sizes:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            source = Path(folder) / "source"
            made = make_checkpoint(source, *SHAPES[size])
            os.sync()  # otherwise the first run waits for these writes
            print(f"{size} GB: {made / 1e9:.2f} GB of weights", flush=True)
            rows += compare(source, Path(folder), size, options.rounds, options.verify)
    report(rows)


def compare(
    source: Path, folder: Path, size: str, rounds: int, verify: bool
) -> list[dict[str, object]]:
    """Return one row per run; the two converters alternate."""
    out = folder / "out"
    command = "import sys; from dflash_mlx.commands import main; sys.exit(main())"
    ours = [sys.executable, "-c", command, "convert", str(source), "-o", str(out)]
    theirs = [sys.executable, "-m", "mlx_lm", "convert", "--hf-path", str(source)]
    theirs += ["--mlx-path", str(out), "-q", "--q-bits", "4", "--q-group-size", "64"]
    both = [(OURS, [*ours, "--bits", "4", "--no-verify"]), (THEIRS, theirs)]
    plan = [run for number in range(rounds) for run in (both if number % 2 == 0 else both[::-1])]
    if verify:
        plan.append((f"{OURS} --verify", [*ours, "--bits", "4"]))
    rows = []
    for name, command in plan:
        seconds, busy, peak = run(command)
        written = sum(path.stat().st_size for path in out.glob("*.safetensors"))
        row = {"size": size, "converter": name, "s": seconds, "cpu_s": busy}
        rows.append({**row, "peak": peak, "out": written})
        printed = f"{seconds:7.1f} s, {busy:6.1f} s of CPU, {peak / 1e6:6.0f} MB peak"
        print(f"  {name:20} {printed}", flush=True)
        shutil.rmtree(out)
    return rows


def run(command: list[str]) -> tuple[float, float, int]:
    """Run a command; return its wall time (s), CPU time (s) and peak memory (bytes)."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr
    error_output = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{error_output.decode()}")
    unit = 1 if sys.platform == "darwin" else 1024
    busy = usage.ru_utime + usage.ru_stime
    return time.perf_counter() - started, busy, usage.ru_maxrss * unit


def report(rows: list[dict[str, object]]) -> None:
    """Print medians as a table, and all runs as one line of JSON."""
    print("\n| checkpoint | converter | wall, median (s) | CPU, median (s) | peak resident (MB) |")
    print("|---|---|---|---|---|")
    for key in dict.fromkeys((row["size"], row["converter"]) for row in rows):
        runs = [row for row in rows if (row["size"], row["converter"]) == key]
        seconds = statistics.median(float(str(row["s"])) for row in runs)
        peak = max(int(str(row["peak"])) for row in runs)
        busy = statistics.median(float(str(row["cpu_s"])) for row in runs)
        print(f"| {key[0]} GB | {key[1]} | {seconds:.1f} | {busy:.1f} | {peak / 1e6:.0f} |")
    print(json.dumps(rows))


def make_checkpoint(
    folder: Path,
    hidden: int,
    ffn: int,
    layers: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    shard_bytes: int = SHARD_BYTES,
) -> int:
    """Write a qwen3 checkpoint of random bfloat16 values in shards; return its bytes."""
    folder.mkdir()
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 128,
        "vocab_size": vocab,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    _write_tokenizer(folder)
    shapes = dict(_shapes(hidden, ffn, layers, heads * 128, kv_heads * 128, vocab))
    shards: list[list[str]] = [[]]
    room = shard_bytes
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        if size > room and shards[-1]:
            shards.append([])
            room = shard_bytes
        shards[-1].append(name)
        room -= size
    index = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write_shard(folder / file, {name: shapes[name] for name in names}, number)
        index |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return 2 * sum(int(np.prod(shape)) for shape in shapes.values())


def _shapes(
    hidden: int, ffn: int, layers: int, wide: int, narrow: int, vocab: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (vocab, hidden)
    for layer in range(layers):
        base = f"model.layers.{layer}"
        yield f"{base}.input_layernorm.weight", (hidden,)
        yield f"{base}.post_attention_layernorm.weight", (hidden,)
        for name, rows in (("q", wide), ("k", narrow), ("v", narrow)):
            yield f"{base}.self_attn.{name}_proj.weight", (rows, hidden)
        yield f"{base}.self_attn.o_proj.weight", (hidden, wide)
        for name in ("q_norm", "k_norm"):
            yield f"{base}.self_attn.{name}.weight", (128,)
        for name in ("gate", "up"):
            yield f"{base}.mlp.{name}_proj.weight", (ffn, hidden)
        yield f"{base}.mlp.down_proj.weight", (hidden, ffn)
    yield "model.norm.weight", (hidden,)


def _write_shard(path: Path, shapes: dict[str, tuple[int, ...]], seed: int) -> None:
    header, position = {}, 0
    for name, shape in shapes.items():
        end = position + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [position, end]}
        position = end
    raw = json.dumps(header).encode()
    # one block of random values, repeated: fast to write, and as slow to quantize as any other
    block = np.random.default_rng(seed).standard_normal(1 << 20, np.float32) * 0.02
    values = (block.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        while position > 0:
            file.write(values[:position])
            position -= len(values)


def _write_tokenizer(folder: Path) -> None:
    """Write the smallest tokenizer that mlx-lm's converter accepts."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="b").save_pretrained(folder)


if __name__ == "__main__":
    main()
