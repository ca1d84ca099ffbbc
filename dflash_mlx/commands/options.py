"""The options that every command which answers prompts shares, in one place.

`RequestOptions` is the list; `spread` turns a command that takes it into one that takes its
fields as flags, which is how typer wants them.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, cast, get_args, get_type_hints

import typer

from dflash_mlx.config import Blas, GenerationConfig, KernelPolicy, SamplingConfig
from dflash_mlx.errors import BadRequest

_FROM_MODEL = "[default: the model's]"


@dataclass(frozen=True)
class RequestOptions:
    """What a user may ask of a pair and of an answer. None leaves a choice to the model."""

    model: Annotated[
        str, typer.Option("--model", "-m", help="A nickname, a folder, a .gguf file or a hub id.")
    ] = "smollm2-135m"
    draft: Annotated[
        str,
        typer.Option(help="auto (the draft that belongs to the model), none, or a name."),
    ] = "auto"
    block_size: Annotated[
        str,
        typer.Option(help="Tokens verified per round, anchor included; 1 disables speculation."),
    ] = "auto"
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 1024
    temperature: Annotated[float | None, typer.Option(help=f"0 is greedy. {_FROM_MODEL}")] = None
    top_p: Annotated[
        float | None, typer.Option(help=f"Smallest set of tokens this likely. {_FROM_MODEL}")
    ] = None
    top_k: Annotated[
        int | None, typer.Option(help=f"The k likeliest tokens; 0 is off. {_FROM_MODEL}")
    ] = None
    min_p: Annotated[
        float | None, typer.Option(help=f"Least share of the best token's odds. {_FROM_MODEL}")
    ] = None
    repetition_penalty: Annotated[float | None, typer.Option(help=f"1 is off. {_FROM_MODEL}")] = (
        None
    )
    presence_penalty: Annotated[float | None, typer.Option(help="0 is off.")] = None
    frequency_penalty: Annotated[float | None, typer.Option(help="0 is off.")] = None
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(metavar="ID=VALUE", help="Add VALUE to a token's logit; repeatable."),
    ] = None
    seed: Annotated[int | None, typer.Option(help="Seed of sampling. [default: a new one]")] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="End before this text; up to 16 times."),
    ] = None
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System message.")] = None
    thinking: Annotated[
        bool | None,
        typer.Option("--thinking/--no-thinking", help="Think first. [default: the pair's]"),
    ] = None
    kernels: Annotated[
        str, typer.Option(help="auto, off or force: which of our Metal kernels serve blocks.")
    ] = "auto"
    blas: Annotated[
        str, typer.Option(help="auto, bundled or openblas (Linux); auto: openblas if installed.")
    ] = "auto"

    def check(self) -> None:
        """Refuse impossible values before anything is loaded.

        Raises:
            BadRequest: a value outside its range.
        """
        block = self.generation(SamplingConfig()).block_size
        if block is not None and block > 1 and self.draft == "none":
            raise BadRequest(
                f"--block-size {block} needs a draft; drop --draft none, or use --block-size 1"
            )
        blas_choice(self.blas)
        kernel_policy(self.kernels)

    def sampling(self, defaults: SamplingConfig) -> SamplingConfig:
        """Return `defaults` with the fields that the user gave."""
        names = {item.name for item in fields(SamplingConfig)} - {"logit_bias"}
        given = {name: getattr(self, name, None) for name in names}
        chosen: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        if self.logit_bias:
            chosen["logit_bias"] = dict(_bias(text) for text in self.logit_bias)
        return replace(defaults, **chosen)

    def generation(self, defaults: SamplingConfig, chat_template: bool = True) -> GenerationConfig:
        """Return the configuration of a request to a model with these sampling `defaults`."""
        return GenerationConfig(
            max_tokens=self.max_tokens,
            stop=tuple(self.stop or ()),
            block_size=_block_size(self.block_size),
            sampling=self.sampling(defaults),
            thinking=self.thinking,
            chat_template=chat_template,
        )

    def idle(self, sampling: SamplingConfig) -> list[str]:
        """Return the flags that were given and that greedy decoding has no use for."""
        if not sampling.greedy:
            return []
        named = ("top_p", "top_k", "min_p", "seed")
        return ["--" + name.replace("_", "-") for name in named if getattr(self, name) is not None]


def blas_choice(text: str) -> Blas:
    """Return what `--blas` asks for.

    Raises:
        BadRequest: another word.
    """
    return cast(Blas, _one_of("--blas", text, get_args(Blas)))


def kernel_policy(text: str) -> KernelPolicy:
    """Return what `--kernels` asks for.

    Raises:
        BadRequest: another word.
    """
    return cast(KernelPolicy, _one_of("--kernels", text, get_args(KernelPolicy)))


def _one_of(option: str, text: str, choices: tuple[str, ...]) -> str:
    if text in choices:
        return text
    raise BadRequest(f"{option} is {text!r}; it needs one of {', '.join(choices)}")


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` with each parameter that is a dataclass replaced by its fields."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    if not groups:
        return command

    def flat(**values: Any) -> None:
        for name, kind in groups.items():
            own = {item.name: values.pop(item.name) for item in fields(kind)}
            values[name] = kind(**own)  # type: ignore[operator]  # is_dataclass admits instances
        command(**values)

    parameters = list(_parameters(command, groups))
    flat.__name__, flat.__doc__ = command.__name__, command.__doc__
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {item.name: item.annotation for item in parameters}
    return flat


def _parameters(
    command: Callable[..., None], groups: dict[str, Any]
) -> Iterator[inspect.Parameter]:
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            yield parameter.replace(kind=parameter.KEYWORD_ONLY)
            continue
        kinds = get_type_hints(groups[name], include_extras=True)
        for item in fields(groups[name]):
            yield inspect.Parameter(
                item.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=item.default,
                annotation=kinds[item.name],
            )


def _block_size(text: str) -> int | None:
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError as error:
        raise BadRequest(f"--block-size is {text!r}; it needs auto, or 1 to 64") from error


def _bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError as error:
        raise BadRequest(
            f"--logit-bias is {text!r}; it needs ID=VALUE, a token id and a number, as in 42=-5"
        ) from error
