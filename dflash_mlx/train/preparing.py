"""A run's parts, before any work is done: target, draft, data, and prompts to measure with."""

from dataclasses import dataclass

from dflash_mlx.engine.load import LoadHooks
from dflash_mlx.system.machine import Machine
from dflash_mlx.train.data import Data, find_data, make_writer
from dflash_mlx.train.evaluate import Prompt, held_out_prompts
from dflash_mlx.train.opening import Beginning, Opened, begin_draft, open_target
from dflash_mlx.train.options import TrainConfig
from dflash_mlx.train.samples import Limits, Samples
from dflash_mlx.train.selfwritten import Writer
from dflash_mlx.train.shards import Shards


@dataclass(frozen=True)
class Prepared:
    """What a run works with. `writer` is None where the data are token ids already."""

    config: TrainConfig
    machine: Machine
    opened: Opened
    beginning: Beginning
    limits: Limits
    data: Data
    prompts: list[Prompt]
    writer: Writer | None

    def samples(self, shards: Shards) -> Samples:
        """Return the samples at hand: those that were read, or written into `shards` so far."""
        if not self.data.writes:
            return self.data.samples
        return Samples(sample for shard in shards for sample in shard.samples)

    def prompts_of(self, per_kind: int) -> list[Prompt]:
        """Return the first `per_kind` prompts of every kind."""
        kinds: dict[str, list[Prompt]] = {}
        for prompt in self.prompts:
            kinds.setdefault(prompt.kind, []).append(prompt)
        return [prompt for found in kinds.values() for prompt in found[:per_kind]]


def prepare(config: TrainConfig, machine: Machine, hooks: LoadHooks) -> Prepared:
    """Return a run's parts; nothing is measured or written yet.

    Raises:
        DFlashError: the target, the draft or the data cannot be used; the message says why.
    """
    opened = open_target(config, machine, hooks)
    beginning = begin_draft(config, opened)
    shape = opened.loaded.target.shape
    mask = beginning.draft.model.config.mask_token_id
    limits = Limits(shape.vocab_size, min(config.max_rows, shape.context_length), mask)
    hooks.on_step(f"reading {config.data}" if config.data != "self" else "preparing the draft")
    data = find_data(config, limits)
    prompts = held_out_prompts(opened.loaded.tokenizer, opened.thinking)
    writer = make_writer(config, opened, limits, data) if data.writes else None
    return Prepared(config, machine, opened, beginning, limits, data, prompts, writer)
