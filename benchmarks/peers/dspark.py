"""Runs the DFlash loop of mlx-dspark 0.20.3, one prompt at a time, for `arms.Peer`.

It needs its own environment:
    python -m venv peer && peer/bin/pip install 'mlx[cpu]==0.32.4' mlx-lm==0.32.2
    peer/bin/pip install --no-deps mlx-dspark==0.20.3
It requires mlx-vlm, with audio and vision packages that a text model does not call. Only the rotary
helper is imported, and a stub with mlx-lm's replaces it; the facts it prints name the stub. Its
Metal kernels are off on a CPU, and its n-gram drafts are off by default. Block size 0 is the
default of the package.
"""

import ctypes
import json
import sys
import types

if sys.argv[3] == "openblas":
    ctypes.CDLL("libopenblas.so.0", mode=ctypes.RTLD_GLOBAL)

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models import rope_utils

for name in ("mlx_vlm", "mlx_vlm.models"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["mlx_vlm.models.rope_utils"] = rope_utils

from mlx_dspark.generate import dflash_generate  # noqa: E402
from mlx_dspark.load import load_dflash, load_target  # noqa: E402


def main() -> None:
    target, tokenizer = load_target(sys.argv[1], require_tap=True)
    loaded = load_dflash(sys.argv[2], quantize=False)
    draft = loaded[0] if isinstance(loaded, tuple) else loaded
    draft.update(tree_map(lambda array: array.astype(mx.float32), draft.parameters()))
    mx.eval(draft.parameters())
    facts = {"package": "mlx-dspark 0.20.3", "mlx": mx.__version__, "stubs": ["mlx_vlm"]}
    print(json.dumps(facts), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        block = request["block"]
        result = dflash_generate(
            target,
            tokenizer,
            draft,
            prompt_ids=request["prompt"],
            max_new_tokens=request["max_tokens"],
            max_draft_tokens=block - 1 if block > 1 else None,
            temperature=0.0,
        )
        # prefill produces the first token; the clock of the package starts after it
        answer = {
            "tokens": [int(token) for token in result.token_ids],
            "seconds": result.decode_seconds,
            "rounds": result.num_rounds,
        }
        print(json.dumps(answer), flush=True)


main()
