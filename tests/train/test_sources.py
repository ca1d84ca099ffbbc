"""Training data from files and from the hub."""

import gzip
import json
from pathlib import Path

import pytest

from dflash_mlx.errors import BadRequest, DownloadFailed, UnknownModel
from dflash_mlx.hub.download import RemoteFile
from dflash_mlx.train.data.sources import read_source


def written(folder, name, rows):
    """Write rows to a file in the format of its name; return its path."""
    path = folder / name
    text = json.dumps(rows) if ".json" in name and ".jsonl" not in name else None
    text = text or "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


@pytest.mark.parametrize("name", ["ids.json", "ids.json.gz", "ids.jsonl", "ids.jsonl.gz"])
def test_token_ids_become_samples(tmp_path, name):
    """Token ids are answers of the target and are not generated again."""
    found = read_source(written(tmp_path, name, [[[1, 2], [3, 4]], [[5], [6], "code"]]))
    assert [(s.prompt, s.answer, s.kind) for s in found.samples] == [
        ((1, 2), (3, 4), ""),
        ((5,), (6,), "code"),
    ]
    assert found.prompts == []


USER = {"role": "user", "content": "Hi"}
REPLY = {"role": "assistant", "content": "Hello"}


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"messages": [USER, REPLY]}, [USER]),
        ({"messages": [USER, REPLY, USER, REPLY]}, [USER, REPLY, USER]),
        ({"messages": [{"role": "system", "content": "Be brief"}, USER]}, None),
        (
            {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "x"}]},
            [USER],
        ),
        ({"prompt": "Hi", "response": "x"}, [USER]),
        ({"prompt": [USER], "completion": "x"}, [USER]),
        ({"question": "Hi", "answer": "x"}, [USER]),
        ({"instruction": " Hi "}, [USER]),
        ([USER, REPLY], [USER]),
    ],
)
def test_the_prompt_of_a_row_is_read(tmp_path, row, messages):
    """Data sets name the prompt differently, and their answers come from other models."""
    found = read_source(written(tmp_path, "rows.jsonl", [row]))
    expected = messages or [{"role": "system", "content": "Be brief"}, USER]
    assert [list(prompt.messages) for prompt in found.prompts] == [expected]


def test_a_text_file_has_one_prompt_per_line(tmp_path):
    """The simplest format."""
    found = read_source(written(tmp_path, "prompts.txt", ["One?", "", "  ", "Two?"]))
    assert [prompt.messages[0]["content"] for prompt in found.prompts] == ["One?", "Two?"]


def test_reading_ends_at_the_limit(tmp_path):
    """A data set of millions of rows must not be read completely for a hundred samples."""
    rows = ["One?", "Two?", "Three?"]
    assert len(read_source(written(tmp_path, "p.txt", rows), limit=2).prompts) == 2


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("empty.jsonl", [], "empty.jsonl contains no prompts"),
        ("empty.json", [], "contains no prompts"),
        (
            "blank.jsonl",
            [{"prompt": ""}],
            "rows with the fields prompt and none of them is a prompt",
        ),
        ("answers.jsonl", [{"answer": "x", "id": 1}], "rows with the fields answer, id and none"),
        ("mixed.jsonl", [[[1], [2]], {"prompt": "Hi"}], "mixes token ids with text"),
        ("broken.jsonl", ['{"prompt": '], "the data cannot be read"),
        ("broken.json.gz", "not gzip", "the data cannot be read"),
        ("latin.txt", b"\xff\xfe\xfd", "the data cannot be read"),
        ("assistant.jsonl", [{"messages": [REPLY]}], "none of them is a prompt"),
    ],
)
def test_data_without_prompts_are_refused(tmp_path, name, rows, message):
    """One line names the fault and the formats."""
    if isinstance(rows, list):
        path = written(tmp_path, name, rows)
    else:
        (tmp_path / name).write_bytes(rows if isinstance(rows, bytes) else rows.encode())
        path = str(tmp_path / name)
    with pytest.raises(BadRequest) as refused:
        read_source(path)
    assert message in str(refused.value)


def test_parquet_without_pyarrow_names_the_package(tmp_path, monkeypatch):
    """An ImportError traceback named a module."""

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr("dflash_mlx.hub.data_file.import_module", missing)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadRequest, match=r"pip install pyarrow|pyarrow"):
        read_source(str(tmp_path / "rows.parquet"))


def test_a_missing_file_is_refused_without_a_request(tmp_path):
    """A misspelled path was sent to the hub."""
    with pytest.raises(UnknownModel, match="not a local file or folder"):
        read_source(str(tmp_path / "nothing.jsonl"))
    with pytest.raises(BadRequest, match="is a folder"):
        read_source(str(tmp_path))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A data set repository without a network; yields the downloaded and the existing names."""
    downloaded = []

    def bring(reference, name, repo_type):
        assert (reference, repo_type) == ("org/data", "dataset")
        downloaded.append(name)
        return written(tmp_path, Path(name).name, [{"prompt": f"{name} {n}"} for n in range(2)])

    names = ["README.md", "data/test.jsonl", "data/train-1.jsonl", "data/train-2.jsonl"]
    monkeypatch.setattr(
        "dflash_mlx.hub.data_sets.list_files",
        lambda *_, **__: ("", [RemoteFile(name, 0, "") for name in names]),
    )
    monkeypatch.setattr("huggingface_hub.hf_hub_download", bring)
    return downloaded, names


def test_a_data_set_is_downloaded_file_by_file_up_to_the_limit(hub):
    """Three prompts must not download a hundred gigabytes, nor the test split."""
    downloaded, _ = hub
    found = read_source("org/data", limit=3)
    assert [prompt.messages[0]["content"] for prompt in found.prompts] == [
        "data/train-1.jsonl 0",
        "data/train-1.jsonl 1",
        "data/train-2.jsonl 0",
    ]
    assert downloaded == ["data/train-1.jsonl", "data/train-2.jsonl"]


def test_a_data_set_in_other_formats_is_refused(hub):
    """The message lists the files and the formats that are read."""
    _, names = hub
    names[:] = ["README.md", "data.tar"]
    with pytest.raises(
        BadRequest, match=r"org/data has no file in a known format \(README.md, data"
    ):
        read_source("org/data")


def test_a_gated_data_set_names_its_page(hub, monkeypatch):
    """The message gave the address of a model."""
    from huggingface_hub.errors import GatedRepoError

    def gated(*given, **named):
        raise GatedRepoError.__new__(GatedRepoError)  # its arguments belong to the hub

    monkeypatch.setattr("dflash_mlx.hub.data_sets.list_files", gated)
    with pytest.raises(DownloadFailed, match=r"licence at https?://[^/]+/datasets/org/data,"):
        read_source("org/data")


def test_a_truncated_file_is_refused(tmp_path):
    """An incomplete download ended in a traceback of the decompressor."""
    whole = Path(written(tmp_path, "rows.jsonl.gz", [{"prompt": f"ask {n}"} for n in range(50)]))
    (tmp_path / "part.jsonl.gz").write_bytes(whole.read_bytes()[:-20])
    with pytest.raises(BadRequest, match=r"part\.jsonl\.gz: .*truncated or damaged"):
        read_source(str(tmp_path / "part.jsonl.gz"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("deep.json", b"[" * 200_000),
        ("deep.jsonl", b"[" * 200_000),
        ("odd.parquet", b"PAR1" + bytes(100) + b"PAR1"),
        ("odd.json.gz", b"\x1f\x8b" + bytes(60)),
    ],
)
def test_malformed_data_are_refused_in_one_line(tmp_path, name, content):
    """RecursionError, zlib and pyarrow errors escaped as tracebacks."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadRequest) as refused:
        read_source(str(tmp_path / name))
    assert len(str(refused.value).splitlines()) == 1


def test_half_surrogate_pairs_are_replaced(tmp_path):
    """JSON can contain them, and no tokenizer can encode them."""
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a\\ud800b"}')
    (prompt,) = read_source(str(tmp_path / "rows.jsonl")).prompts
    assert prompt.messages[0]["content"] == "a?b"


def test_sizes_are_bounded_before_memory_is_taken(tmp_path, monkeypatch):
    """A compressed file of a few kilobytes took all memory."""
    monkeypatch.setattr("dflash_mlx.hub.data_file._MAX_FILE", 1000)
    monkeypatch.setattr("dflash_mlx.hub.data_file._MAX_LINE", 1000)
    for name in ("bomb.json.gz", "bomb.jsonl.gz", "bomb.txt"):
        text = b'["' + b"x" * 100_000 + b'"]'
        content = gzip.compress(text) if name.endswith(".gz") else text
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadRequest, match="more than 1000 characters"):
            read_source(str(tmp_path / name))
