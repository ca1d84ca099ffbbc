"""The samples of a run, wherever they come from: read, or to be written by the target."""

from dataclasses import dataclass

from dflash_mlx.errors import BadRequest
from dflash_mlx.system.paths import bare_name
from dflash_mlx.train.opening import Opened
from dflash_mlx.train.options import SELF, TrainConfig
from dflash_mlx.train.questions import Question
from dflash_mlx.train.samples import Limits, Samples, Sieve
from dflash_mlx.train.selfwritten import Writer, Writing
from dflash_mlx.train.sources import read
from dflash_mlx.train.writing import Pace

_TURN_TOKENS, _ANSWER_TOKENS = 96, 512
"""Tokens of a question that the target asks, and of any answer, at most."""


@dataclass(frozen=True)
class Data:
    """What there is: `samples` at hand, or `questions` (None: the target asks too) to answer.

    `source` is what a card may say, a name and never a place. `dropped` says what was left out.
    """

    source: str
    samples: Samples
    writes: bool
    questions: list[Question] | None = None
    dropped: str = ""

    @property
    def most(self) -> int | None:
        """Samples that can be had at most."""
        return len(self.questions) if self.questions is not None else None


def find_data(config: TrainConfig, limits: Limits) -> Data:
    """Return the data of a run; token ids are sifted, nothing is written yet.

    Raises:
        BadRequest: the data cannot be used; the message says why.
        UnknownModel, DownloadFailed: no such file or data set.
    """
    if config.data == SELF:
        return Data(SELF, Samples(), writes=True)
    found = read(config.data, config.samples)
    source = bare_name(config.data)
    if found.questions:
        said = f"{found.empty} rows without a prompt" if found.empty else ""
        return Data(source, Samples(), True, found.questions, said)
    sieve = Sieve(limits)
    kept = [sieve.keep(sample, source) for sample in found.samples]
    samples = Samples(sample for sample in kept if sample)
    if not samples:
        raise BadRequest(f"{source} has no sample that can be learned from: {sieve.described()}")
    return Data(source, samples, writes=False, dropped=sieve.described())


def make_writer(config: TrainConfig, opened: Opened, limits: Limits, data: Data) -> Writer:
    """Return what writes the samples of a run."""
    pace = Pace(n_tokens=max(2, min(512, limits.max_rows * 3 // 4)))
    writing = Writing(pace=pace, answers=config.answers, thinking=opened.thinking, seed=config.seed)
    return Writer(opened.loaded, writing, limits, data.questions)
