"""The official `dflash` 0.1.0 MLX loop, one prompt at a time: run by `arms.Peer`.

Needs an environment of its own:
    python -m venv peer && peer/bin/pip install 'mlx[cpu]==0.32.4' mlx-lm==0.32.2
    peer/bin/pip install --no-deps dflash==0.1.0
The target comes as float32 arrays of a safetensors folder, the draft as a hub-cache entry, both
written by the benchmark, so that both sides hold the same numbers. Block 0 is its own choice.
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
            # its own clock starts when the prompt is read, the last row's logits included
            began = began or time.perf_counter()
            tokens += step.tokens
            rounds += 1 if step.accepted is not None else 0
        seconds = time.perf_counter() - began
        # the first token came with the prompt
        print(
            json.dumps({"tokens": tokens, "seconds": seconds, "rounds": rounds}),
            flush=True,
        )


main()
