"""Side files of the output: which are copied, which are written, which are left out."""

import json
import os

import pytest
from mlx_lm.utils import load_tokenizer

from dflash_mlx.convert.write.shards import file_hash
from dflash_mlx.engine.load import load
from dflash_mlx.errors import BadCheckpoint, PairMismatch
from dflash_mlx.pairs.manifest import Manifest, check_manifest, target_facts, tokenizer_hash
from tests.convert.checkpoints import DRAFT_CONFIG, draft_folder, run, target_folder


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return target_folder(tmp_path_factory.mktemp("source") / "tiny-model")


@pytest.mark.parametrize("form", ["jinja", "config", "several"])
def test_every_form_of_the_chat_template_is_copied(tmp_path, form):
    """The chat template was lost in one of its forms."""
    folder = target_folder(tmp_path / "source")
    template = (folder / "chat_template.jinja").read_text()
    if form == "config":
        (folder / "chat_template.jinja").unlink()
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(
            json.dumps({**config, "chat_template": template})
        )
    if form == "several":
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates/tool.jinja").write_text("{{ tools }}")
    run(folder, tmp_path / "out")
    assert load_tokenizer(tmp_path / "out").has_chat_template
    assert (tmp_path / "out/additional_chat_templates/tool.jinja").exists() == (form == "several")


def test_licence_generation_config_and_model_card_are_copied(source, tmp_path):
    """A licence must stay with the weights."""
    run(source, tmp_path / "out")
    for name in ("LICENSE", "generation_config.json", "tokenizer.json"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    assert "# The original" in (tmp_path / "out/SOURCE_README.md").read_text()


def test_the_readme_gives_origin_and_usage(source, tmp_path):
    """The README must record origin and usage."""
    run(source, tmp_path / "out", bits=8, group_size=32)
    text = (tmp_path / "out/README.md").read_text()
    assert "license: apache-2.0" in text.split("---")[1]
    for fact in ("tiny-model", "bits 8, group_size 32", "dflash-mlx chat", "Date of the source"):
        assert fact in text
    assert str(tmp_path) not in text, "the README must not contain local paths"


def test_code_and_links_out_of_the_folder_are_left_out(source, tmp_path):
    """A link in a checkpoint must not copy other files of the user into the output."""
    folder = target_folder(tmp_path / "source")
    (tmp_path / "id_rsa").write_text("secret")
    (folder / "notes.txt").symlink_to(tmp_path / "id_rsa")
    (folder / "modeling.py").write_text("import os")
    (folder / ".hidden").write_text("x")
    (folder / "inside.txt").symlink_to(folder / "LICENSE")
    run(folder, tmp_path / "out")
    found = {path.name for path in (tmp_path / "out").iterdir()}
    assert not found & {"notes.txt", "modeling.py", ".hidden"}
    assert (tmp_path / "out/inside.txt").read_text() == "Apache-2.0"


def test_links_into_the_hub_cache_are_followed(source, tmp_path):
    """In the hub's cache every file is a link to a blob two levels up."""
    snapshot = tmp_path / "models--a--b/snapshots/abc"
    blobs = tmp_path / "models--a--b/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in source.iterdir():
        (blobs / path.name).write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    run(snapshot, tmp_path / "out")
    assert (tmp_path / "out/LICENSE").read_text() == "Apache-2.0"
    assert not (tmp_path / "out/LICENSE").is_symlink()


@pytest.mark.parametrize("name", ["loop.txt", "tokenizer_extra.json"])
def test_circular_links_give_one_line(tmp_path, name):
    """Circular links gave a RuntimeError."""
    folder = target_folder(tmp_path / "source")
    os.symlink(folder / name, folder / name)
    with pytest.raises(BadCheckpoint, match="broken or circular link"):
        run(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_card_describes_the_pair(source, tmp_path):
    """The pair card is the only record of which target and draft belong together."""
    draft = draft_folder(tmp_path / "draft")
    run(source, tmp_path / "out", draft=str(draft))
    card = Manifest.read(tmp_path / "out")
    assert card is not None
    assert card.target == target_facts(
        json.loads((tmp_path / "out/config.json").read_text()), tmp_path / "out"
    )
    assert card.target.tokenizer == tokenizer_hash(source)
    assert (card.draft.target_layer_ids, card.draft.block_size) == ((0, 2), 8)
    assert (card.draft.mask_token_id, card.draft.in_block_causal) == (257, (True, False))
    for origin, folder in ((card.target_origin, "."), (card.draft_origin, "draft")):
        for name, sha256 in origin.shards.items():
            assert file_hash(tmp_path / "out" / folder / name) == sha256
    assert card.draft_origin.bits["fc"] == 8.5


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [("target", "vocab_size", 1), ("target", "tokenizer", "x"), ("draft", "block_size", 16)],
)
def test_a_card_that_does_not_fit_names_the_field(source, tmp_path, kind, field, value):
    """Files of two conversions may have equal shapes; the card must reveal the mixture."""
    out = tmp_path / "out"
    run(source, out, draft=str(draft_folder(tmp_path / "draft")))
    table = json.loads((out / "pair.json").read_text())
    table[kind][field] = value
    (out / "pair.json").write_text(json.dumps(table))
    with pytest.raises(PairMismatch, match=field):
        load(str(out))


def test_a_card_does_not_apply_to_another_draft(source, tmp_path):
    """Another draft with a converted target must not be checked against the card."""
    out = tmp_path / "out"
    run(source, out, draft=str(draft_folder(tmp_path / "draft")))
    other = draft_folder(tmp_path / "other", config={**DRAFT_CONFIG, "block_size": 4})
    check_manifest(out, other)
    check_manifest(out, out / "draft")
    check_manifest(source, None)


@pytest.mark.parametrize("text", ["{", "{}", '{"format": 2}', '{"format": 1}', "[]"])
def test_a_broken_card_gives_one_line(tmp_path, text):
    """A truncated card gave a traceback."""
    (tmp_path / "pair.json").write_text(text)
    with pytest.raises(BadCheckpoint):
        Manifest.read(tmp_path)
