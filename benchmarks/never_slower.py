"""Is `auto` ever slower than plain decoding, than the best fixed block, or than other packages?

    python benchmarks/never_slower.py auto --tokens 512 --repeats 5
    python benchmarks/never_slower.py peers --official peer-a/bin/python --dspark peer-b/bin/python
    python benchmarks/never_slower.py report --json FILE    of a run that was broken off; to go
                                                            on with it: --resume, as it was begun

The embedded pair in float32 on OpenBLAS, greedy. `auto` writes on past end tokens, so that every
answer has its 512 tokens, and its arms take turns every 16 tokens of their answers, each turn
begun by another: the machine's drift meets all alike. `peers` stops at end tokens, as the packages
do, each in a process of its own, and its arms take turns answer by answer. Texts are compared: a
figure whose text is another is marked. Medians and the middle half are printed; "auto / best" (of
the blocks and plain decoding) and its like are divided answer by answer.
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
from prompts import PROMPTS

import dflash_mlx
from dflash_mlx.bench.summary import spread
from dflash_mlx.system.json_file import write_json

BLOCKS = (2, 3, 4, 5, 6, 8)

_TURN = 16
"""Tokens that an arm writes before the next one has its turn."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["auto", "peers", "report"])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=1, help="of each kind")
    parser.add_argument("--blocks", type=int, nargs="+", default=BLOCKS)
    parser.add_argument("--official", type=Path, help="python with dflash 0.1.0")
    parser.add_argument("--dspark", type=Path, help="python with mlx-dspark 0.20.3")
    parser.add_argument("--json", type=Path, help="write every run here as well")
    parser.add_argument("--resume", action="store_true", help="go on with the runs in --json")
    options = parser.parse_args()
    if (options.resume or options.what == "report") and not (
        options.json and options.json.is_file()
    ):
        parser.error("--json needs the file of a run that was begun")
    if options.what == "report":
        report(kept(options.json))
        return
    dflash_mlx.use_openblas()
    with dflash_mlx.load("smollm2-135m") as engine, tempfile.TemporaryDirectory() as folder:
        runs = kept(options.json) if options.resume else []
        engine.worker.run(lambda: measure(engine.loaded, options, Path(folder), runs))
    report(runs)


def measure(loaded, options, folder, runs):
    """Run every arm in turn on every prompt; add the runs to `runs`, each with its arm and kind.

    What was measured is written to the `--json` file after every prompt: an hour of figures does
    not hang on the last minute.
    """
    from arms import Answer, plain_rounds

    ends = loaded.tokenizer.eos_token_ids if options.what == "peers" else frozenset()
    turn = options.tokens if options.what == "peers" else _TURN
    arms = {"plain": lambda ids, n: Answer(plain_rounds(loaded.pair, ids, n, ends))}
    arms["auto"] = lambda ids, n: auto(loaded, ids, n, ends)
    for block in options.blocks:
        arms[f"block {block}"] = fixed(loaded, block, ends)
    peers = start_peers(loaded, options, folder)
    for name, peer in peers.items():
        arms[f"{name} default"] = asked(peer, 0)
        for block in options.blocks:
            arms[f"{name} {block}"] = asked(peer, block)
    work = [
        (kind, loaded.tokenizer.render([{"role": "user", "content": text}], None))
        for kind, texts in PROMPTS.items()
        for text in texts[: options.prompts]
    ]
    for start in arms.values():  # kernels built, pages touched
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


def kept(file):
    """Return the runs of a `--json` file."""
    return [argparse.Namespace(**values) for values in json.loads(file.read_text())]


def in_turns(answers, n_tokens, turn, shift):
    """Write all answers to `n_tokens`, `turn` tokens of one at a time, another first each time."""
    names = list(answers)
    for number, until in enumerate(range(turn, n_tokens + turn, turn), shift):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            answers[name].write(min(until, n_tokens))


def fixed(loaded, block, ends):
    from arms import Answer, dflash_rounds

    from dflash_mlx.decode.policy import FixedBlock

    return lambda ids, n: Answer(dflash_rounds(loaded.pair, ids, n, FixedBlock(block), ends))


def asked(peer, block):
    return lambda ids, n: peer.start(ids, n, block)


def auto(loaded, ids, n_tokens, ends):
    """Decode as `--block-size auto` does, and let the pair learn from it as an engine does."""
    from arms import Answer, dflash_rounds

    policy = loaded.tuning.policy()
    rounds = dflash_rounds(loaded.pair, ids, n_tokens, policy, ends)
    return Answer(rounds, finished=lambda: loaded.tuning.learn(policy))


def start_peers(loaded, options, folder):
    """Start the other packages on the same weights."""
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
    """Print speeds by kind and arm, in plain speeds, and what they are in each other's."""
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
    print("* a text that differs from plain decoding's")
    if theirs := [arm for arm in arms if arm.startswith(("official", "dspark"))]:
        for arm in theirs:
            ours = "auto" if arm.endswith("default") else f"block {arm.split()[-1]}"
            found = [quotients(ratios, kind, ours, arm) for kind in kinds]
            print_row(f"{ours} / {arm}", map(spelled, found))
    else:
        print_goals(ratios, kinds, ["plain", *(arm for arm in arms if arm.startswith("block"))])


def print_goals(ratios, kinds, fixed):
    """Print how `auto` does beside the best of the `fixed` arms, and what it should reach."""
    autos = {kind: statistics.median(ratios[kind, "auto"]) for kind in kinds}
    behind = {}
    for kind in kinds:
        best = max(fixed, key=lambda arm: statistics.median(ratios[kind, arm]))
        behind[kind] = quotients(ratios, kind, "auto", best)
    print_row("auto / best", map(spelled, behind.values()))
    worst = min(autos, key=autos.get)
    print(f"auto on its worst kind ({worst}): {autos[worst]:.3f} of plain, goal 0.98")
    worst = min(behind, key=lambda kind: statistics.median(behind[kind]))
    values = behind[worst]
    print(
        f"auto in the speed of the best fixed block or plain, on {worst}: "
        f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f}), goal 0.97"
    )


def quotients(ratios, kind, arm, other):
    """Return the speeds of `arm` in those of `other`, answer by answer."""
    return [a / b for a, b in zip(ratios[kind, arm], ratios[kind, other], strict=True)]


def spelled(values):
    """Return the median and the middle half."""
    found = spread(values)
    return f"{found.median:.3f} ({found.low:.2f}-{found.high:.2f})"


def print_row(name, cells):
    print(f"{name:25}" + "".join(f"{cell:>22}" for cell in cells))


if __name__ == "__main__":
    main()
