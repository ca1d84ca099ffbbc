"""A draft folder into a draft in memory, bound to its target."""

from pathlib import Path

from dflash_mlx.loading.compatibility import check_draft_config, check_pair
from dflash_mlx.loading.compute import Compute, float16_as_bfloat16, settle_weights
from dflash_mlx.loading.weights import fill, read_safetensors
from dflash_mlx.models.draft.build import bind, draft_model
from dflash_mlx.models.draft.dflash import BoundDraft
from dflash_mlx.models.draft.tensor_names import runtime_name
from dflash_mlx.models.protocols import Target
from dflash_mlx.system.foreign import reading
from dflash_mlx.system.json_file import read_json


def load_draft(path: Path, target: Target, compute: Compute) -> BoundDraft:
    """Return the draft in a folder, in memory and bound to `target`.

    Raises:
        BadCheckpoint: files are missing, truncated or contradict their configuration.
        UnsupportedModel: the folder holds a draft of another kind, or no draft.
        PairMismatch: the draft was trained for another target.
    """
    config = check_draft_config(read_json(path / "config.json"), str(path))
    check_pair(config, target.shape, str(path))
    weights = {
        name: array
        for stored_name, array in read_safetensors(path).items()
        if (name := runtime_name(stored_name)) is not None
    }
    if not compute.dense:  # dense weights become float32
        weights = float16_as_bfloat16(weights)
    with reading(path, "the draft"):
        model = draft_model(config, weights)
        fill(model, weights, str(path), config.quantization)
        settle_weights(model, compute)
        return bind(model, target)
