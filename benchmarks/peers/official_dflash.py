"""Runs the MLX loop of the official `dflash` 0.1.0, one prompt at a time, for `arms.Peer`.

It needs its own environment:
    python -m venv peer && peer/bin/pip install 'mlx[cpu]==0.32.4' mlx-lm==0.32.2
    peer/bin/pip install --no-deps dflash==0.1.0
The benchmark writes the target as a folder of float32 safetensors and the draft as a hub-cache
entry, so that both packages use the same weights. Block size 0 is the default of the package.
"""

import ctypes
import json
import sys
import time

if sys.argv[3] == "openblas":
    ctypes.CDLL("libopenblas.so.0", mode=ctypes.RTLD_GLOBAL)

import mlx.core as mx
from dflash.model_mlx import load_draft, stream_generate
from mlx.utils import tree_map
from mlx_lm import load


def main() -> None:
    model, tokenizer = load(sys.argv[1])
    draft = load_draft(sys.argv[2])
    draft.update(tree_map(lambda array: array.astype(mx.float32), draft.parameters()))
    mx.eval(draft.parameters())
    print(json.dumps({"package": "dflash 0.1.0", "mlx": mx.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        tokens, rounds, began = [], 0, 0.0
        steps = stream_generate(
            model,
            draft,
            tokenizer,
            mx.array(request["prompt"]),
            block_size=request["block"] or None,
            max_tokens=request["max_tokens"],
        )
        for step in steps:
            # its clock starts after prefill, which includes the logits of the last prompt token
            began = began or time.perf_counter()
            tokens += step.tokens
            rounds += 1 if step.accepted is not None else 0
        seconds = time.perf_counter() - began
        # prefill produced the first token
        print(
            json.dumps({"tokens": tokens, "seconds": seconds, "rounds": rounds}),
            flush=True,
        )


main()
