"""Runs a target layer by layer over one text, with part of one layer's weights in memory.

It must not know where the weights come from. Shapes: n tokens, D hidden size, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from dflash_mlx.convert.plan.streamed import StreamedLinear, replace_modules
from dflash_mlx.convert.plan.target_layout import build_model
from dflash_mlx.convert.tensors import Rows, read_all, to_mlx
from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.models.targets.decoder import DecoderTarget
from dflash_mlx.models.targets.families import family_of
from dflash_mlx.system.foreign import quoted, reading

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"


class LayerRunner:
    """The modules of a target without weights.

    Raises:
        UnsupportedModel: the runtime does not support the family, or its forward pass does more
            than run one layer after another.
    """

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        family = family_of(str(config.get("model_type")), source)
        self.model = build_model(config, source)
        with reading(source, "its config.json", "download it again"):
            self.target: DecoderTarget = family(self.model)
        if not self.target.is_bare:
            raise UnsupportedModel(
                f"{source} is of family {quoted(config.get('model_type'))}, which cannot be run "
                "one layer at a time; choose a recipe by name with --recipe"
            )
        self.n_layers = self.target.shape.n_layers
        # Metal multiplies bfloat16 at full speed; MLX's CPU backend is fast in float32 only
        self.dtype = mx.bfloat16 if mx.metal.is_available() else mx.float32
        self._tied = bool(config.get("tie_word_embeddings"))
        self._linears: dict[str, nn.Linear] = {}

    def embed(self, values: Mapping[str, Rows], tokens: list[int]) -> mx.array:
        """Return the embeddings [1, n, D] of `tokens`; only the rows of these tokens are read."""
        rows = values[_EMBEDDING]
        if max(tokens) >= rows.shape[0]:
            raise BadCheckpoint(
                f"the tokenizer gives token {max(tokens)} and {_EMBEDDING} has {rows.shape[0]} "
                "rows; check that the tokenizer belongs to the model"
            )
        unique = {token: to_mlx(rows.read(token, token + 1), rows.dtype) for token in set(tokens)}
        embedded = mx.concatenate([unique[token] for token in tokens]).astype(self.dtype)
        mx.eval(embedded)
        return embedded[None]

    def layer(self, index: int) -> nn.Module:
        """Return the module of a layer."""
        layer: nn.Module = self.model.model.layers[index]
        return layer

    def fill(self, index: int, values: Mapping[str, Rows]) -> nn.Module:
        """Load a layer's weights and return its module; weights of linear layers are streamed."""
        layer, prefix = self.layer(index), f"model.layers.{index}."
        self._linears = {
            path: module for path, module in layer.named_modules() if type(module) is nn.Linear
        }
        streamed = {
            path: StreamedLinear(module, values[f"{prefix}{path}.weight"], self.dtype)
            for path, module in self._linears.items()
        }
        replace_modules(layer, streamed)
        layer.load_weights([(name, self._read(values[prefix + name])) for name in _names(layer)])
        return layer

    def empty(self, index: int) -> None:
        """Release a layer's weights."""
        layer = self.layer(index)
        replace_modules(layer, dict(self._linears))
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
        mx.eval(array)  # frees the bytes that were read
        return array


def _names(layer: nn.Module) -> list[str]:
    return list(dict(tree_flatten(layer.parameters())))
