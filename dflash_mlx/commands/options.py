"""Options that several commands share, and the values that their texts stand for.

Each command declares its options as the fields of one frozen dataclass; see `app.as_flags`.
It must not import MLX or models: `--help` imports this module.
"""

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, cast, get_args

import typer

from dflash_mlx.commands.environment import check_folders
from dflash_mlx.config import (
    Blas,
    ComputeDType,
    GenerationConfig,
    KernelPolicy,
    ReasoningEffort,
    SamplingConfig,
)
from dflash_mlx.errors import BadRequest
from dflash_mlx.system.blas import choose_blas

DEFAULT_MODEL = "smollm2-135m"
"""The embedded pair: it needs no download and no account."""

ModelOption = Annotated[
    str,
    typer.Option("--model", "-m", help="Nickname, folder, .gguf file or Hugging Face id."),
]
DraftOption = Annotated[
    str,
    typer.Option(
        help="Draft model: auto (the known draft of the target), none, copy (no model: draft "
        "tokens are copied from the context), or a name."
    ),
]
BitsOption = Annotated[
    str,
    typer.Option(
        help="Bits per weight of the target: auto (on Metal, the build of a known pair that fits "
        "and is fastest; on a CPU, the original), 4, 5, 6, 8 or 16."
    ),
]
KernelsOption = Annotated[
    str,
    typer.Option(
        help="Metal kernels: auto (those that are correct and faster here), off or force."
    ),
]
DTypeOption = Annotated[
    str,
    typer.Option(
        "--dtype", help="Compute dtype: stored, float32, or auto (stored on Metal, else float32)."
    ),
]
BlasOption = Annotated[
    str,
    typer.Option(help="Matrix library on Linux: auto (OpenBLAS if installed), bundled, openblas."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
ThinkingOption = Annotated[
    bool | None,
    typer.Option("--thinking/--no-thinking", help="Enable thinking mode. [default: the pair's]"),
]

_FROM_MODEL = "[default: the model's]"


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """Options of the commands that answer prompts. None selects the model's own default."""

    model: ModelOption = DEFAULT_MODEL
    draft: DraftOption = "auto"
    bits: BitsOption = "auto"
    block_size: Annotated[
        str,
        typer.Option(
            help="Block size: tokens verified per round, including the anchor; 1 disables "
            "speculation."
        ),
    ] = "auto"
    copies: Annotated[
        bool | None,
        typer.Option(
            "--copies/--no-copies",
            help="Also copy draft tokens from the context where that is faster. [default: only "
            "with --draft copy]",
        ),
    ] = None
    max_tokens: Annotated[int, typer.Option(help="Maximum number of new tokens.")] = 1024
    temperature: Annotated[
        float | None, typer.Option(help=f"Sampling temperature; 0 is greedy. {_FROM_MODEL}")
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            help=f"Nucleus sampling: sample from the smallest set with this total probability. "
            f"{_FROM_MODEL}"
        ),
    ] = None
    top_k: Annotated[
        int | None,
        typer.Option(help=f"Sample from the k most likely tokens; 0 disables. {_FROM_MODEL}"),
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(
            help=f"Minimum probability relative to the most likely token; 0 disables. {_FROM_MODEL}"
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            help=f"Factor on the logits of recent tokens; 1 disables. {_FROM_MODEL}",
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        typer.Option(help="Subtracted from the logits of recent tokens; 0 disables."),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        typer.Option(help="Subtracted once per recent occurrence of a token; 0 disables."),
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(metavar="ID=VALUE", help="Add VALUE to a token's logit; repeatable."),
    ] = None
    seed: Annotated[int | None, typer.Option(help="Seed of sampling. [default: a random seed]")] = (
        None
    )
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="End the answer before this text; up to 16 times."),
    ] = None
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System message.")] = None
    thinking: ThinkingOption = None
    reasoning_effort: Annotated[
        str | None,
        typer.Option(
            help="low, medium or high, for models such as gpt-oss. [default: the model's]"
        ),
    ] = None
    dtype: DTypeOption = "auto"
    kernels: KernelsOption = "auto"
    blas: BlasOption = "auto"

    def check(self) -> None:
        """Check the values before anything is loaded.

        Raises:
            BadRequest: a value is outside its range.
        """
        block_size = self.generation(SamplingConfig()).block_size
        drafts = self.draft != "none" or self.copies
        if block_size is not None and block_size > 1 and not drafts:
            raise BadRequest(
                f"--block-size {block_size} needs a draft; omit --draft none, or use --block-size 1"
            )
        parse_bits("--bits", self.bits)
        blas_choice(self.blas)
        kernel_policy(self.kernels)
        compute_dtype(self.dtype)

    def sampling(self, defaults: SamplingConfig) -> SamplingConfig:
        """Return `defaults` with the fields that the user set."""
        names = {item.name for item in fields(SamplingConfig)} - {"logit_bias"}
        given = {name: getattr(self, name, None) for name in names}
        chosen: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        if self.logit_bias:
            chosen["logit_bias"] = dict(_parse_bias(text) for text in self.logit_bias)
        return replace(defaults, **chosen)

    def generation(self, defaults: SamplingConfig, chat_template: bool = True) -> GenerationConfig:
        """Return the request configuration for a model with these sampling `defaults`."""
        return GenerationConfig(
            max_tokens=self.max_tokens,
            stop=tuple(self.stop or ()),
            block_size=_parse_block_size(self.block_size),
            sampling=self.sampling(defaults),
            copies=self.copies,
            thinking=self.thinking,
            reasoning_effort=reasoning_effort(self.reasoning_effort),
            chat_template=chat_template,
        )

    def unused(self, sampling: SamplingConfig) -> list[str]:
        """Return the flags the user set that greedy decoding ignores."""
        if not sampling.greedy:
            return []
        names = ("top_p", "top_k", "min_p", "seed")
        return [flag_of(name) for name in names if getattr(self, name) is not None]


def flag_of(field_name: str) -> str:
    """Return the flag of an option field: `top_p` to `--top-p`."""
    return "--" + field_name.replace("_", "-")


def blas_choice(text: str) -> Blas:
    """Return the value of `--blas`.

    Raises:
        BadRequest: the value is not one of the choices.
    """
    return cast(Blas, _one_of("--blas", text, get_args(Blas)))


def prepare(blas: str) -> None:
    """Check the process's folders and select the BLAS; call it before the first import of MLX.

    Raises:
        BadRequest: a folder is missing, or `blas` is not one of the choices.
        DFlashError: OpenBLAS was requested and cannot be loaded.
    """
    check_folders()
    choose_blas(blas_choice(blas))


def kernel_policy(text: str) -> KernelPolicy:
    """Return the value of `--kernels`.

    Raises:
        BadRequest: the value is not one of the choices.
    """
    return cast(KernelPolicy, _one_of("--kernels", text, get_args(KernelPolicy)))


def compute_dtype(text: str) -> ComputeDType:
    """Return the value of `--dtype`.

    Raises:
        BadRequest: the value is not one of the choices.
    """
    return cast(ComputeDType, _one_of("--dtype", text, get_args(ComputeDType)))


def reasoning_effort(text: str | None) -> ReasoningEffort | None:
    """Return the value of `--reasoning-effort`, None if it was not set.

    Raises:
        BadRequest: the value is not one of the choices.
    """
    if text is None:
        return None
    choice = _one_of("--reasoning-effort", text, get_args(ReasoningEffort))
    return cast(ReasoningEffort, choice)


def parse_bits(option: str, text: str) -> Any:
    """Return the value of `--bits` or `--draft-bits`: "auto" or a number.

    Raises:
        BadRequest: the text is neither; numbers are checked by `PrecisionConfig`.
    """
    if text == "auto" or text.isdecimal():
        return text if text == "auto" else int(text)
    raise BadRequest(f"{option} is {text!r}; it needs auto or a number of bits")


def parse_numbers(option: str, text: str) -> tuple[int, ...]:
    """Return the whole numbers of a list such as `2,4,8`.

    Raises:
        BadRequest: an item is not a whole number; the message names `option`.
    """
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise BadRequest(f"{option} is {text!r}; it needs numbers such as 2,4,8") from error


def _one_of(option: str, text: str, choices: tuple[str, ...]) -> str:
    if text in choices:
        return text
    raise BadRequest(f"{option} is {text!r}; it needs one of {', '.join(choices)}")


def _parse_block_size(text: str) -> int | None:
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError as error:
        raise BadRequest(f"--block-size is {text!r}; it needs auto, or 1 to 64") from error


def _parse_bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError as error:
        raise BadRequest(
            f"--logit-bias is {text!r}; it needs ID=VALUE, a token id and a number, as in 42=-5"
        ) from error
