"""Is the embedded pair's text equal to mlx-lm's, and how close is its speedup to the bound?

    python benchmarks/embedded_pair.py parity
    python benchmarks/embedded_pair.py speed --peer peer/bin/python

`parity` runs on MLX's bundled BLAS, where block forwards and single steps round alike: greedy text
must equal mlx-lm's on the same arrays. `speed` runs on OpenBLAS and interleaves plain decoding,
our loop at every block size and, with --peer, the loop of the official package. The bound of the
speedup is tokens per round / (v + d), where v and d are the verify and draft forwards in plain
steps, timed between the runs.
"""

import argparse
import json
import platform
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import dflash_mlx
from dflash_mlx.bench.suites import KINDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["parity", "speed"])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=4, help="prompts of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--blocks", type=int, nargs="+")
    parser.add_argument("--peer", type=Path, help="python with dflash 0.1.0 installed")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.what == "speed":
        dflash_mlx.use_openblas()
    with dflash_mlx.load("smollm2-135m") as engine:
        work = {"parity": parity, "speed": speed}[options.what]
        report = engine.worker.run(lambda: work(engine.loaded, options))
    print(json.dumps(report) if options.json else "")


def parity(loaded, options):
    """Compare greedy text with mlx-lm's, and print tokens per round by kind."""
    from arms import dflash_run, plain_run
    from prompts import prompt_ids

    from dflash_mlx.decode.policy import FixedBlock

    ends, equal, total = loaded.tokenizer.eos_token_ids, 0, 0
    rounds, committed = defaultdict(int), defaultdict(int)
    for block in options.blocks or [4, 8]:
        for kind, ids in prompt_ids(loaded, options.kinds, options.prompts):
            reference = plain_run(loaded.pair, ids, options.tokens, ends)
            run = dflash_run(loaded.pair, ids, options.tokens, FixedBlock(block), ends)
            total += 1
            equal += run.tokens == reference.tokens
            rounds[block, kind] += run.rounds
            committed[block, kind] += len(run.tokens)
            mark = "equal" if run.tokens == reference.tokens else "DIFFERENT"
            print(f"block {block} {kind}: {mark}, {len(run.tokens)} tokens", file=sys.stderr)
    print(f"greedy text equal to mlx-lm's: {equal} of {total} (BLAS {loaded.blas})")
    table = {}
    for (block, kind), count in rounds.items():
        table[f"{block} {kind}"] = committed[block, kind] / count
        print(f"block {block:2}  {kind:12} {table[f'{block} {kind}']:.2f} tokens per round")
    if equal != total:
        raise SystemExit("the text differs from plain decoding")
    return {"equal": equal, "total": total, "tokens_per_round": table, "blas": loaded.blas}


def speed(loaded, options):
    """Interleave the arms prompt by prompt; print speedups, bounds and overheads."""
    from arms import Peer, dflash_run, plain_run
    from prompts import prompt_ids

    from dflash_mlx.bench.forwards import time_forwards
    from dflash_mlx.decode.policy import FixedBlock

    blocks = options.blocks or [2, 3, 4, 5, 6, 7, 8]
    ends, work = frozenset(), list(prompt_ids(loaded, options.kinds, options.prompts))
    with tempfile.TemporaryDirectory() as folder:
        peer = None
        if options.peer:
            script = Path(__file__).parent / "peers" / "official_dflash.py"
            names = write_for_peer(loaded, Path(folder))
            cache = {"HF_HUB_CACHE": f"{folder}/hub", "HF_HUB_OFFLINE": "1"}
            peer = Peer(options.peer, script, [*names, loaded.blas], cache)
        runs = defaultdict(list)
        dflash_run(loaded.pair, work[0][1], 16, FixedBlock(8), ends)  # warm-up
        plain_run(loaded.pair, work[0][1], 16, ends)
        for kind, ids in work:
            runs["plain"].append(plain_run(loaded.pair, ids, options.tokens, ends))
            for block in blocks:
                policy = FixedBlock(block)
                runs[block].append(dflash_run(loaded.pair, ids, options.tokens, policy, ends))
                forward = time_forwards(loaded.pair, ids, block)
                runs["v", block].append(forward.verify_s)
                runs["d", block].append(forward.draft_s)
                if peer:
                    runs["peer", block].append(peer.run(ids, options.tokens, block))
            print(f"{kind} done", file=sys.stderr)
        if peer:
            peer.close()
    return print_speed(runs, blocks, loaded, bool(options.peer))


def print_speed(runs, blocks, loaded, with_peer):
    """Print the table of one interleaved run, and return its rows."""
    plain = runs["plain"]
    plain_s = sum(run.seconds for run in plain) / sum(len(run.tokens) for run in plain)
    print(f"{platform.processor() or platform.machine()}, BLAS {loaded.blas}, float32")
    print(f"plain mlx-lm: {1 / plain_s:.2f} tokens/s, {plain_s * 1e3:.2f} ms a step")
    print("block  tok/round   v     d    bound x  speedup  of bound  overhead ms", end="")
    print("   official x  its overhead ms" if with_peer else "")
    rows = []
    for block in blocks:
        tau = _tokens(runs[block]) / _rounds(runs[block])
        v = statistics.median(runs["v", block]) / plain_s
        d = statistics.median(runs["d", block]) / plain_s
        bound = tau / (v + d)
        gain = _tokens(runs[block]) / _seconds(runs[block]) * plain_s
        overhead = _seconds(runs[block]) / _rounds(runs[block]) - (v + d) * plain_s
        row = {"block": block, "tokens_per_round": tau, "v": v, "d": d, "bound": bound}
        row |= {"speedup": gain, "of_bound": gain / bound, "overhead_s": overhead}
        line = f"{block:4}   {tau:7.3f}  {v:5.2f} {d:5.2f}  {bound:6.3f}  {gain:6.3f}"
        line += f"   {gain / bound:6.1%}   {overhead * 1e3:7.2f}"
        if with_peer:
            theirs = runs["peer", block]
            peer_gain = _tokens(theirs) / _seconds(theirs) * plain_s
            peer_overhead = _seconds(theirs) / _rounds(theirs) - (v + d) * plain_s
            equal = sum(a.tokens == b.tokens for a, b in zip(theirs, runs[block], strict=True))
            row |= {"official": peer_gain, "official_overhead_s": peer_overhead, "equal": equal}
            line += f"       {peer_gain:6.3f}  {peer_overhead * 1e3:7.2f}   ({equal} texts equal)"
        rows.append(row)
        print(line)
    spread = statistics.pstdev(run.seconds / len(run.tokens) for run in plain) / plain_s
    print(f"spread of plain between prompts: {spread:.1%}")
    return {"plain_tokens_per_second": 1 / plain_s, "rows": rows, "blas": loaded.blas}


def _tokens(runs):
    return sum(run.timed_tokens for run in runs)


def _seconds(runs):
    return sum(run.seconds for run in runs)


def _rounds(runs):
    return sum(run.rounds for run in runs)


def write_for_peer(loaded, folder):
    """Write target and draft where the official package looks for them; return both names.

    The package does not support a reduced vocabulary, so there the draft uses the target's head.
    """
    import mlx.core as mx
    from mlx.utils import tree_flatten

    target = folder / "target"
    target.mkdir()
    model = loaded.pair.target.model
    mx.save_safetensors(str(target / "model.safetensors"), dict(tree_flatten(model.parameters())))
    from dataclasses import asdict

    config = {k: v for k, v in asdict(model.args).items() if v is not None}
    (target / "config.json").write_text(json.dumps(config))
    loaded.tokenizer._wrapper._tokenizer.save_pretrained(str(target))
    commit = folder / "hub" / "models--local--draft" / "snapshots" / ("0" * 40)
    commit.mkdir(parents=True)
    refs = commit.parent.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text(commit.name)
    weights = dict(tree_flatten(loaded.pair.draft.model.parameters()))
    own = {name: array for name, array in weights.items() if not name.startswith(("lm_", "d2t"))}
    mx.save_safetensors(str(commit / "model.safetensors"), own)
    shipped = Path(dflash_mlx.__file__).parent / "drafts" / "smollm2-135m-dflash-b8"
    draft_config = json.loads((shipped / "config.json").read_text())
    draft_config.pop("draft_vocab_size", None)
    draft_config.pop("quantization", None)
    (commit / "config.json").write_text(json.dumps(draft_config))
    return str(target), "local/draft"


if __name__ == "__main__":
    main()
