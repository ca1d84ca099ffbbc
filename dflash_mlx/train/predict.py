"""What a draft being trained would propose at many anchors of a sample at once."""

import mlx.core as mx
import numpy as np

from dflash_mlx.models.draft.dflash import BoundDraft
from dflash_mlx.train.anchors import Blocks
from dflash_mlx.train.evaluate import Predict
from dflash_mlx.train.features import FeatureStore
from dflash_mlx.train.head import whole_head
from dflash_mlx.train.objective import Example, hidden_rows
from dflash_mlx.train.samples import Sample


def predictor(draft: BoundDraft, features: FeatureStore, dtype: mx.Dtype) -> Predict:
    """Return the likeliest token of every slot, the head's own; a selector is left out."""
    head = whole_head(draft)

    def predict(sample: Sample, blocks: Blocks) -> np.ndarray:
        example = Example(sample.tokens, sample.first, blocks, features(sample))
        logits = head.project(hidden_rows(draft, example, dtype))
        return head.tokens(np.array(mx.argmax(logits, axis=-1)))

    return predict
