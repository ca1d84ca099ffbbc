"""Opens the source of a conversion, and its draft, and checks that the two belong together."""

from collections.abc import Callable, Sequence

from dflash_mlx.convert.options import ConvertConfig
from dflash_mlx.convert.progress import ConversionProgress, ProgressCallback
from dflash_mlx.convert.sources.hub_source import open_hub_source
from dflash_mlx.convert.sources.location import SourceLocation, hub_repository, locate
from dflash_mlx.convert.sources.source import ModelSource, open_source
from dflash_mlx.errors import BadRequest
from dflash_mlx.loading.compatibility import check_pair, configured_dimensions
from dflash_mlx.pairs import registry
from dflash_mlx.pairs.manifest import DRAFT_FOLDER, FILE, Manifest
from dflash_mlx.system.foreign import reading


def open_sources(config: ConvertConfig, watch: ProgressCallback) -> dict[str, ModelSource]:
    """Return the sources by their folder in the output, the target's first.

    A converted pair is a source of both of its models.

    Raises:
        DFlashError: a source cannot be opened, or the two do not belong together.
    """

    def report(text: str) -> None:
        watch(ConversionProgress("plan", 0, 1, text))

    keep = config.keep_original
    sources = {"": _open(config.source, config.revision, keep, report)}
    if config.draft:
        draft, revision = _draft(config)
        sources[DRAFT_FOLDER] = _open(draft, revision, keep, report)
    elif inner := _inner_draft(sources[""]):
        sources[DRAFT_FOLDER] = open_source(inner)
    _check_sources(list(sources.values()))
    for source in sources.values():
        with reading(source.location.folder / FILE, "the pair card", "delete it"):
            Manifest.read(source.location.folder)  # copied at the end, so checked at the start
    return sources


def _open(
    reference: str, revision: str | None, keep_original: bool, report: Callable[[str], None]
) -> ModelSource:
    """Open a source: a local or cached one as it is, one on the hub for download by shards."""
    repository = hub_repository(reference, revision)
    if repository is None or keep_original:
        return open_source(locate(reference, revision, report))
    return open_hub_source(*repository, report)


def _draft(config: ConvertConfig) -> tuple[str, str | None]:
    """Return draft and revision; "auto" stands for the draft of the known pair."""
    assert config.draft is not None
    if config.draft != "auto":
        return config.draft, config.draft_revision
    card = registry.find(config.source) or registry.card_for(config.source)
    if card is None or card.draft is None:
        raise BadRequest(
            f"no draft is known for {config.source}; name one with --draft (dflash-mlx models "
            "lists the known pairs)"
        )
    return card.draft, config.draft_revision or card.draft_revision


def _inner_draft(source: ModelSource) -> SourceLocation | None:
    """Return the draft inside a converted pair; None if the source is not a pair."""
    folder = source.location.folder / DRAFT_FOLDER
    if source.is_draft or source.location.file or not (source.location.folder / FILE).is_file():
        return None
    return SourceLocation(source.name, folder) if (folder / "config.json").is_file() else None


def _check_sources(sources: Sequence[ModelSource]) -> None:
    """Check one source alone, or a target with its draft.

    Raises:
        BadRequest: the two are not one target and one draft.
        PairMismatch: the draft was trained for a target of another shape.
    """
    if len(sources) == 1:
        return
    target, draft = sources
    if target.is_draft or not draft.is_draft:
        raise BadRequest(
            f"{target.name} is a {target.kind} and --draft {draft.name} is a {draft.kind}; give "
            "the target first and its draft with --draft"
        )
    check_pair(
        draft.draft_config(),
        configured_dimensions(target.config, target.name),
        draft.name,
        target.name,
    )
