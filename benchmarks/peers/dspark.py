"""mlx-dspark 0.20.3's DFlash loop, one prompt at a time: run by `arms.Peer`.

Needs an environment of its own:
    python -m venv peer && peer/bin/pip install 'mlx[cpu]==0.32.4' mlx-lm==0.32.2
    peer/bin/pip install --no-deps mlx-dspark==0.20.3
mlx-vlm, which it asks for, brings audio and vision packages that a text model never calls. Of it
only the rotary helper is imported, so a stub stands in that is mlx-lm's own; the table says so.
Its Metal kernels refuse themselves on a CPU, and its n-gram drafts are off as in its default.
Block 0 is its own choice.
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
        # the first token comes with the prompt; its clock says when the prompt was read
        answer = {
            "tokens": [int(token) for token in result.token_ids],
            "seconds": result.decode_seconds,
            "rounds": result.num_rounds,
        }
        print(json.dumps(answer), flush=True)


main()
