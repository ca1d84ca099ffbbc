"""A target's layers over one text, with a fraction of one layer's weights in memory at a time.

The layers are mlx-lm's and are called as the runtime's walk calls them. Weights come as rows, so
a source, its values as they will be after conversion, and a source far larger than memory are
all the same here. Letters: n tokens, D hidden size, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from dflash_mlx.convert.plan.streamed import StreamedLinear, put
from dflash_mlx.convert.plan.target_layout import build_model
from dflash_mlx.convert.tensors import Rows, read_all, to_mlx
from dflash_mlx.errors import UnsupportedModel
from dflash_mlx.models.targets.decoder import DecoderTarget
from dflash_mlx.models.targets.families import family_of

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"


class LayerRunner:
    """The skeleton of a target: its modules, without weights.

    Raises:
        UnsupportedModel: a family that does not run here, or more than a walk over its layers.
    """

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        family = family_of(str(config.get("model_type")), source)
        self.model = build_model(config, source)
        self.target: DecoderTarget = family(self.model)
        if not self.target.is_bare:
            raise UnsupportedModel(
                f"{source} is of family {config.get('model_type')!r}, which is not walked one "
                "layer at a time; give the recipe by name"
            )
        self.n_layers = self.target.shape.n_layers
        # quick on Metal as stored; MLX's CPU products are quick in float32 only
        self.dtype = mx.bfloat16 if mx.metal.is_available() else mx.float32
        self._tied = bool(config.get("tie_word_embeddings"))
        self._linears: dict[str, nn.Linear] = {}

    def embed(self, values: Mapping[str, Rows], tokens: list[int]) -> mx.array:
        """Return the embeddings [1, n, D] of `tokens`, of which only their rows are read."""
        rows = values[_EMBEDDING]
        kinds = {token: to_mlx(rows.read(token, token + 1), rows.dtype) for token in set(tokens)}
        embedded = mx.concatenate([kinds[token] for token in tokens]).astype(self.dtype)
        mx.eval(embedded)
        return embedded[None]

    def layer(self, index: int) -> nn.Module:
        """Return the module of a layer."""
        layer: nn.Module = self.model.model.layers[index]
        return layer

    def fill(self, index: int, values: Mapping[str, Rows]) -> nn.Module:
        """Return a layer's module holding its weights; those of linear layers are streamed."""
        layer, prefix = self.layer(index), f"model.layers.{index}."
        self._linears = {
            path: module for path, module in layer.named_modules() if type(module) is nn.Linear
        }
        streamed = {
            path: StreamedLinear(module, values[f"{prefix}{path}.weight"], self.dtype)
            for path, module in self._linears.items()
        }
        put(layer, streamed)
        layer.load_weights([(name, self._read(values[prefix + name])) for name in _names(layer)])
        return layer

    def empty(self, index: int) -> None:
        """Let go of a layer's weights."""
        layer = self.layer(index)
        put(layer, dict(self._linears))
        parameters = dict(tree_flatten(layer.parameters()))
        shapes = [(name, array.shape) for name, array in parameters.items()]
        layer.load_weights([(name, mx.zeros(shape)) for name, shape in shapes])

    def run(self, index: int, hidden: mx.array) -> mx.array:
        """Return the output [1, n, D] of a filled layer."""
        caches = self.target.make_caches()
        masks = self.target.masks(hidden, caches)
        layer = self.layer(index)
        output = self.target.run_layer(layer, hidden, masks[index], caches[index])
        mx.eval(output)
        return output

    def norm(self, values: Mapping[str, Rows], hidden: mx.array) -> mx.array:
        """Return `hidden` after the final norm, in float32, [n, D]."""
        norm = self.model.model.norm
        norm.load_weights([("weight", self._read(values["model.norm.weight"]))])
        normed: mx.array = norm(hidden)[0].astype(mx.float32)
        mx.eval(normed)
        return normed

    def head(self, values: Mapping[str, Rows]) -> Rows:
        """Return the rows of the head [V, D]."""
        return values[_EMBEDDING if self._tied else _HEAD]

    def _read(self, rows: Rows) -> mx.array:
        array = read_all(rows)
        if mx.issubdtype(array.dtype, mx.floating):
            array = array.astype(self.dtype)
        mx.eval(array)  # which frees what was read
        return array


def _names(layer: nn.Module) -> list[str]:
    return list(dict(tree_flatten(layer.parameters())))
