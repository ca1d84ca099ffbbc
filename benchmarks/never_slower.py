"""Is auto slower than plain decoding, the best fixed block size, or other packages?

    python benchmarks/never_slower.py auto --tokens 512 --repeats 5
    python benchmarks/never_slower.py peers --official peer-a/bin/python --dspark peer-b/bin/python
    python benchmarks/never_slower.py report --json FILE

`report` prints an interrupted run; --resume, with the same options, continues it.

The embedded pair in float32 on OpenBLAS, greedy. With `auto`, answers continue after
end-of-sequence tokens, so that each has --tokens tokens, and the arms take turns of 16 tokens, so
that the drift of the machine affects all of them equally. With `peers`, answers stop at
end-of-sequence tokens, each package runs in its own process, and arms take turns answer by answer.
Texts are compared, and a different one is marked. Figures are medians with quartiles; ratios
between arms are computed answer by answer.
"""

import argparse
import json
import operator
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from embedded_pair import write_for_peer
from prompts import prompt_ids

import dflash_mlx
from dflash_mlx.bench.suites import KINDS
from dflash_mlx.bench.summary import spread
from dflash_mlx.system.json_file import write_json

BLOCK_SIZES = (2, 3, 4, 5, 6, 8)

_TURN = 16
"""Tokens that an arm decodes in one turn: two seconds here, in which the machine hardly changes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["auto", "peers", "report"])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=1, help="prompts of each kind")
    parser.add_argument("--block-sizes", type=int, nargs="+", default=BLOCK_SIZES)
    parser.add_argument("--official", type=Path, help="python with dflash 0.1.0")
    parser.add_argument("--dspark", type=Path, help="python with mlx-dspark 0.20.3")
    parser.add_argument("--json", type=Path, help="also write every run to this file")
    parser.add_argument("--resume", action="store_true", help="continue the runs in --json")
    options = parser.parse_args()
    if (options.resume or options.what == "report") and not (
        options.json and options.json.is_file()
    ):
        parser.error("--json needs the file of an earlier run")
    if options.what == "report":
        report(read_runs(options.json))
        return
    dflash_mlx.use_openblas()
    with dflash_mlx.load("smollm2-135m") as engine, tempfile.TemporaryDirectory() as folder:
        runs = read_runs(options.json) if options.resume else []
        engine.worker.run(lambda: measure(engine.loaded, options, Path(folder), runs))
    report(runs)


def measure(loaded, options, folder, runs):
    """Run the arms in turns on every prompt, and add the results to `runs`.

    The `--json` file is written after every prompt, so an interrupted run is not lost.
    """
    from arms import Answer, plain_rounds

    ends = loaded.tokenizer.eos_token_ids if options.what == "peers" else frozenset()
    turn = options.tokens if options.what == "peers" else _TURN
    arms = {"plain": lambda ids, n: Answer(plain_rounds(loaded.pair, ids, n, ends))}
    arms["auto"] = lambda ids, n: auto_arm(loaded, ids, n, ends)
    for block in options.block_sizes:
        arms[f"block {block}"] = fixed_arm(loaded, block, ends)
    peers = start_peers(loaded, options, folder)
    for name, peer in peers.items():
        arms[f"{name} default"] = peer_arm(peer, 0)
        for block in options.block_sizes:
            arms[f"{name} {block}"] = peer_arm(peer, block)
    work = list(prompt_ids(loaded, KINDS, options.prompts))
    for start in arms.values():  # compile kernels and touch memory
        start(work[0][1], 16).write(16)
    for repeat in range(options.repeats):
        for number, (kind, ids) in enumerate(work):
            if any((run.prompt, run.repeat) == (number, repeat) for run in runs):
                continue
            answers = {name: start(ids, options.tokens) for name, start in arms.items()}
            in_turns(answers, options.tokens, turn, repeat + number)
            for name, answer in answers.items():
                run = answer.run()
                runs.append(
                    argparse.Namespace(
                        arm=name,
                        kind=kind,
                        prompt=number,
                        repeat=repeat,
                        rounds=run.rounds,
                        seconds=run.seconds,
                        timed=run.timed_tokens,
                        tokens=list(run.tokens),
                    )
                )
            print(f"repeat {repeat + 1}: {kind} done", file=sys.stderr)
            if options.json:
                write_json(options.json, [vars(run) for run in runs])
    for peer in peers.values():
        peer.close()


def read_runs(file):
    """Return the runs in a `--json` file."""
    return [argparse.Namespace(**values) for values in json.loads(file.read_text())]


def in_turns(answers, n_tokens, turn, shift):
    """Decode all answers in turns of `turn` tokens; another answer comes first in each turn."""
    names = list(answers)
    for number, until in enumerate(range(turn, n_tokens + turn, turn), shift):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            answers[name].write(min(until, n_tokens))


def fixed_arm(loaded, block, ends):
    from arms import Answer, dflash_rounds

    from dflash_mlx.decode.policy import FixedBlock

    return lambda ids, n: Answer(dflash_rounds(loaded.pair, ids, n, FixedBlock(block), ends))


def peer_arm(peer, block):
    return lambda ids, n: peer.start(ids, n, block)


def auto_arm(loaded, ids, n_tokens, ends):
    """Return an answer with the controller; the pair learns from it, as in an engine."""
    from arms import Answer, dflash_rounds

    policy = loaded.tuning.policy()
    rounds = dflash_rounds(loaded.pair, ids, n_tokens, policy, ends)
    return Answer(rounds, finished=lambda: loaded.tuning.learn(policy))


def start_peers(loaded, options, folder):
    """Start the other packages, with the same weights."""
    from arms import Peer

    if options.what != "peers":
        return {}
    arguments = write_for_peer(loaded, folder)
    environment = {"HF_HUB_CACHE": str(folder / "hub"), "HF_HUB_OFFLINE": "1"}
    here = Path(__file__).parent / "peers"
    wanted = {"official": options.official, "dspark": options.dspark}
    scripts = {"official": "official_dflash.py", "dspark": "dspark.py"}
    return {
        name: Peer(python, here / scripts[name], [*arguments, loaded.blas], environment)
        for name, python in wanted.items()
        if python is not None
    }


def report(runs):
    """Print speedups by kind and arm, and ratios between arms."""
    plain = {(r.prompt, r.repeat): r for r in runs if r.arm == "plain"}
    ratios, equal = defaultdict(list), defaultdict(list)
    for run in runs:
        base = plain[run.prompt, run.repeat]
        ratio = (run.timed / run.seconds) / (base.timed / base.seconds)
        ratios[run.kind, run.arm].append(ratio)
        shorter = min(len(run.tokens), len(base.tokens))
        equal[run.kind, run.arm].append(run.tokens[:shorter] == base.tokens[:shorter])
    kinds = list(dict.fromkeys(run.kind for run in runs))
    arms = [arm for arm in dict.fromkeys(run.arm for run in runs) if arm != "plain"]
    speed = statistics.median(run.timed / run.seconds for run in plain.values())
    longest, repeats = max(len(run.tokens) for run in runs), 1 + max(run.repeat for run in runs)
    print(f"plain: {speed:.1f} tokens/s, float32, OpenBLAS, {longest} tokens, {repeats} repeats")
    print_row("", kinds)
    for arm in arms:
        marks = ["" if all(equal[kind, arm]) else "*" for kind in kinds]
        cells = [spelled(ratios[kind, arm]) for kind in kinds]
        print_row(arm, map(operator.add, cells, marks))
    print("* the text differs from plain decoding")
    if theirs := [arm for arm in arms if arm.startswith(("official", "dspark"))]:
        for arm in theirs:
            ours = "auto" if arm.endswith("default") else f"block {arm.split()[-1]}"
            found = [ratios_between(ratios, kind, ours, arm) for kind in kinds]
            print_row(f"{ours} / {arm}", map(spelled, found))
    else:
        print_goals(ratios, kinds, ["plain", *(arm for arm in arms if arm.startswith("block"))])


def print_goals(ratios, kinds, fixed):
    """Print auto relative to the best of the `fixed` arms, and the goals."""
    autos = {kind: statistics.median(ratios[kind, "auto"]) for kind in kinds}
    relative = {}
    for kind in kinds:
        best = max(fixed, key=lambda arm: statistics.median(ratios[kind, arm]))
        relative[kind] = ratios_between(ratios, kind, "auto", best)
    print_row("auto / best", map(spelled, relative.values()))
    worst = min(autos, key=autos.get)
    print(f"lowest speedup of auto ({worst}): {autos[worst]:.3f}, goal 0.98")
    worst = min(relative, key=lambda kind: statistics.median(relative[kind]))
    values = relative[worst]
    print(
        f"auto relative to the best fixed block size or plain ({worst}): "
        f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f}), goal 0.97"
    )


def ratios_between(ratios, kind, arm, other):
    """Return the throughput ratio of two arms, answer by answer."""
    return [a / b for a, b in zip(ratios[kind, arm], ratios[kind, other], strict=True)]


def spelled(values):
    """Return the median and the quartiles."""
    found = spread(values)
    return f"{found.median:.3f} ({found.low:.2f}-{found.high:.2f})"


def print_row(name, cells):
    print(f"{name:25}" + "".join(f"{cell:>22}" for cell in cells))


if __name__ == "__main__":
    main()
