"""Data from files and from the hub, in the forms people have it."""

import gzip
import json
from pathlib import Path

import pytest

from dflash_mlx.errors import BadRequest, DownloadFailed, UnknownModel
from dflash_mlx.train.sources import read


def written(folder, name, rows):
    """A file of rows, in the form its name says."""
    path = folder / name
    text = json.dumps(rows) if ".json" in name and ".jsonl" not in name else None
    text = text or "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


@pytest.mark.parametrize("name", ["ids.json", "ids.json.gz", "ids.jsonl", "ids.jsonl.gz"])
def test_token_ids_are_taken_as_the_targets_own(tmp_path, name):
    """Tokenizing ids again, or having them answered again, would waste the hours they took."""
    found = read(written(tmp_path, name, [[[1, 2], [3, 4]], [[5], [6], "code"]]))
    assert [(s.prompt, s.answer, s.kind) for s in found.samples] == [
        ((1, 2), (3, 4), ""),
        ((5,), (6,), "code"),
    ]
    assert found.questions == []


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
def test_rows_are_read_for_what_they_ask(tmp_path, row, messages):
    """Every data set spells a question otherwise; its answers are not the target's."""
    found = read(written(tmp_path, "rows.jsonl", [row]))
    expected = messages or [{"role": "system", "content": "Be brief"}, USER]
    assert [list(asked.messages) for asked in found.questions] == [expected]


def test_plain_text_is_a_prompt_a_line(tmp_path):
    """The simplest file a person can write."""
    found = read(written(tmp_path, "prompts.txt", ["One?", "", "  ", "Two?"]))
    assert [asked.messages[0]["content"] for asked in found.questions] == ["One?", "Two?"]


def test_reading_ends_at_the_limit(tmp_path):
    """A data set of millions of rows is not read to its end for a hundred samples."""
    rows = ["One?", "Two?", "Three?"]
    assert len(read(written(tmp_path, "p.txt", rows), limit=2).questions) == 2


@pytest.mark.parametrize(
    ("name", "rows", "words"),
    [
        ("empty.jsonl", [], "empty.jsonl holds no prompts"),
        ("empty.json", [], "holds no prompts"),
        ("blank.jsonl", [{"prompt": ""}], "rows with prompt and no prompt among them"),
        ("answers.jsonl", [{"answer": "x", "id": 1}], "rows with answer, id and no prompt"),
        ("mixed.jsonl", [[[1], [2]], {"prompt": "Hi"}], "mixes token ids with text"),
        ("broken.jsonl", ['{"prompt": '], "cannot be read as data"),
        ("broken.json.gz", "not gzip", "cannot be read as data"),
        ("latin.txt", b"\xff\xfe\xfd", "cannot be read as data"),
        ("assistant.jsonl", [{"messages": [REPLY]}], "no prompt among them"),
    ],
)
def test_data_without_prompts_is_refused_in_a_line(tmp_path, name, rows, words):
    """What is wrong with the file, and what it needs, before anything is loaded."""
    if isinstance(rows, list):
        path = written(tmp_path, name, rows)
    else:
        (tmp_path / name).write_bytes(rows if isinstance(rows, bytes) else rows.encode())
        path = str(tmp_path / name)
    with pytest.raises(BadRequest) as refused:
        read(path)
    assert words in str(refused.value)


def test_a_parquet_file_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    """The optional package is named; a traceback names a module."""

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr("dflash_mlx.hub.data_file.import_module", missing)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadRequest, match=r"pip install pyarrow|pyarrow"):
        read(str(tmp_path / "rows.parquet"))


def test_a_name_that_is_nothing_is_refused_before_the_hub_is_asked(tmp_path):
    """A misspelled path must not become a request to somebody's server."""
    with pytest.raises(UnknownModel, match="not a local file or folder"):
        read(str(tmp_path / "nothing.jsonl"))
    with pytest.raises(BadRequest, match="is a folder"):
        read(str(tmp_path))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A data set repository on no network; the list of files that were brought."""
    brought = []

    def bring(reference, name, repo_type):
        assert (reference, repo_type) == ("org/data", "dataset")
        brought.append(name)
        return written(tmp_path, Path(name).name, [{"prompt": f"{name} {n}"} for n in range(2)])

    names = ["README.md", "data/test.jsonl", "data/train-1.jsonl", "data/train-2.jsonl"]
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", lambda self, *_, **__: names)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", bring)
    return brought, names


def test_a_data_set_is_brought_file_by_file_as_far_as_needed(hub):
    """A hundred gigabytes are not downloaded for three prompts, and test splits stay unread."""
    brought, _ = hub
    found = read("org/data", limit=3)
    assert [asked.messages[0]["content"] for asked in found.questions] == [
        "data/train-1.jsonl 0",
        "data/train-1.jsonl 1",
        "data/train-2.jsonl 0",
    ]
    assert brought == ["data/train-1.jsonl", "data/train-2.jsonl"]


def test_a_data_set_in_other_forms_is_refused_by_name(hub):
    """Webdataset archives, say: which files there are and which would do."""
    _, names = hub
    names[:] = ["README.md", "data.tar"]
    with pytest.raises(
        BadRequest, match=r"org/data has no file that can be read \(README.md, data"
    ):
        read("org/data")


def test_a_gated_data_set_is_sent_to_its_own_page(hub, monkeypatch):
    """The licence of a data set was to be accepted on the page of a model."""
    from huggingface_hub.errors import GatedRepoError

    def gated(self, *given, **named):
        raise GatedRepoError.__new__(GatedRepoError)  # its arguments are the hub's own

    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", gated)
    with pytest.raises(DownloadFailed, match=r"licence at https?://[^/]+/datasets/org/data,"):
        read("org/data")


def test_a_file_that_was_cut_short_is_refused_in_one_line(tmp_path):
    """A download that broke off ended in a traceback of the decompressor."""
    whole = Path(written(tmp_path, "rows.jsonl.gz", [{"prompt": f"ask {n}"} for n in range(50)]))
    (tmp_path / "part.jsonl.gz").write_bytes(whole.read_bytes()[:-20])
    with pytest.raises(BadRequest, match=r"part\.jsonl\.gz .*truncated or damaged"):
        read(str(tmp_path / "part.jsonl.gz"))
