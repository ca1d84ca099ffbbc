"""What a nickname stands for: a target with the draft trained for it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PairCard:
    """A target with the draft trained for it, as a nickname names them.

    Args:
        nickname: short name of the pair.
        target: hub id of the target, or a `wheel:` or `package:` reference to a Python package.
        family: model family of the target.
        draft: the draft, in the same forms as `target`.
        target_revision: commit of the target; None if unknown.
        draft_revision: commit of the draft; None if unknown.
        fallback: target to use if `target` cannot be found.
        thinking: thinking mode that the draft was trained with; None without such a mode.
        block_size: the draft's block size; None takes the one in its configuration.
        temperature: recommended sampling temperature; None takes the model's own default.
        top_p: recommended nucleus sampling; None takes the model's own default.
        aliases: other names of the pair.
        targets: other builds of the target that the draft fits.
        parameters: number of the target's; None if it is published in fewer than 16 bits.
        draft_bytes: size of the draft's download; None if unknown.
        target_bytes: size of the target's download; None if unknown.
        licence: licence of the draft.
        note: a line for the user.

    Examples:
        >>> card = dflash_mlx.PairCard("mine", target="org/model", family="qwen3")
        >>> card.draft is None
        True
    """

    nickname: str
    target: str
    family: str
    draft: str | None = None
    target_revision: str | None = None
    draft_revision: str | None = None
    fallback: str | None = None
    thinking: bool | None = None
    block_size: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    aliases: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    parameters: int | None = None
    draft_bytes: int | None = None
    target_bytes: int | None = None
    licence: str | None = None
    note: str = ""
