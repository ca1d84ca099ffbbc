"""The benchmark: comparison of texts, figures, reports, and interrupted runs."""

import gzip
import json
import math
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from dflash_mlx.bench.arms import AUTO, PLAIN, ArmAnswer, DFlashArm, PlainArm, prompt_ids
from dflash_mlx.bench.earlier import read_earlier, side_by_side
from dflash_mlx.bench.forwards import Forward, forwards
from dflash_mlx.bench.page import page
from dflash_mlx.bench.parity import Parity, compare
from dflash_mlx.bench.report import lines
from dflash_mlx.bench.run import INTERRUPT_REASON, BenchConfig, BenchRun, BenchSample, run
from dflash_mlx.bench.suites import KINDS, BenchPrompt, bundled, data_set, long_document
from dflash_mlx.bench.summary import spread, summarise, verdict
from dflash_mlx.controller.costs import CostCurve
from dflash_mlx.controller.state import ControllerState
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.worker import Worker
from dflash_mlx.errors import BadRequest
from dflash_mlx.models.pair import Pair
from tests.commands.results import STATS
from tests.tiny import loaded_pair, random_draft

PROMPTS = [BenchPrompt("code", "def f():"), BenchPrompt("chat", "Hello")]
CURVE = CostCurve((1, 8), (0,), ((0.01, 0.02),))

pytestmark = pytest.mark.xdist_group("bench")  # the report is made once


@pytest.fixture(scope="module")
def engine(target):
    """A tiny pair in a real engine, with its session and worker thread."""
    worker = Worker("bench test")
    loaded = loaded_pair(Pair(target, random_draft(target)), tuning=ControllerState(CURVE, 8))
    yield Engine(loaded, worker)
    worker.close()


@pytest.fixture(scope="module")
def report(engine):
    """The report of a small benchmark with two block sizes and a long document."""
    config = BenchConfig(n_tokens=12, repeats=2, block_sizes=(2, 4), contexts=(700,))
    measured = run(engine, PROMPTS, config, lambda text: None)
    bare = forwards(engine, prompt_ids(engine, PROMPTS[0]), [1, 2, 4])
    return summarise(engine, measured, config, bare, 1e9, "40 degrees Celsius")


def test_both_arms_read_the_same_prompt_and_write_the_same_text(engine):
    """A benchmark that renders a different prompt than chat measures something else."""
    plain = PlainArm().answer(engine, PROMPTS[0], 12)
    ours = DFlashArm(4).answer(engine, PROMPTS[0], 12)
    assert plain.tokens == ours.tokens and plain.prompt_tokens == ours.prompt_tokens
    assert compare(engine, prompt_ids(engine, PROMPTS[0]), plain.tokens, ours.tokens) == Parity(
        "equal"
    )
    assert ours.marks[-1][0] == 12 and ours.marks[-1][1] <= ours.seconds


def test_both_arms_end_where_the_context_is_full(engine):
    """An arm that decodes beyond the context length seemed to write a different text."""
    room = engine.loaded.context_length
    long = long_document(2)
    ids = prompt_ids(engine, long)
    plain = PlainArm().answer(engine, long, room)
    ours = DFlashArm(8).answer(engine, long, room)
    assert plain.tokens == ours.tokens
    assert len(ids) + len(plain.tokens) <= room + 1


def test_different_texts_are_classified_by_the_targets_margin(engine):
    """A near-tie is not a bug; without the margin, a bug cannot be told from a near-tie."""
    ids = prompt_ids(engine, PROMPTS[0])
    plain = PlainArm().answer(engine, PROMPTS[0], 8).tokens
    other = (*plain[:5], (plain[5] + 1) % 256, *plain[6:])
    found = compare(engine, ids, plain, other)
    assert found.at == 5 and found.margin > 0
    assert found.verdict == ("near-tie" if found.margin <= 1e-3 else "different")
    assert compare(engine, ids, plain, plain[:6]).verdict == "different"


def test_an_arm_with_a_different_text_gets_no_figures(engine):
    """A broken verifier accepted wrong tokens, and its throughput was published."""
    answer = PlainArm().answer(engine, PROMPTS[0], 8)
    measured = BenchRun([PROMPTS[0]])
    measured.parity = {(PLAIN, 0): Parity("equal"), ("block 4", 0): Parity("different", 3, 1.0)}
    measured.samples = [
        BenchSample(PLAIN, 0, "code", 0, answer),
        BenchSample("block 4", 0, "code", 0, answer),
    ]
    report = summarise(engine, measured, BenchConfig(), [], None, None)
    assert {figure.arm for figure in report.figures} == {PLAIN}
    assert not report.exact


def test_report_has_every_arm_on_every_kind(report):
    """An average over kinds hides that prose loses while code gains."""
    kinds = {"code", "chat", "all"} | {f.kind for f in report.figures if f.kind.endswith(" tokens")}
    assert len(kinds) == 4
    assert {(figure.arm, figure.kind) for figure in report.figures} == {
        (arm, kind) for arm in (PLAIN, AUTO, "block 2", "block 4") for kind in kinds
    }
    block = next(f for f in report.figures if (f.arm, f.kind) == ("block 4", "all"))
    assert block.throughput.count == 6
    assert sum(block.accepted_lengths.values()) > 0
    assert block.draft_s > 0 and block.verify_s > 0 and block.bound_share > 0
    assert all(0 <= share <= 1 for share in block.by_position)


def test_acceptance_by_position_counts_the_rounds_that_drafted(engine):
    """Of 100 rounds with drafting disabled, one drafted; the other 99 must not count."""
    answer = PlainArm().answer(engine, PROMPTS[0], 4)
    seen = [(100, (1.0,), (1,)), (9, (1 / 3, 1.0), (9, 3))]
    stats = [
        replace(STATS, rounds=rounds, accepted_by_position=shares, drafted_by_position=counts)
        for rounds, shares, counts in seen
    ]
    measured = BenchRun([PROMPTS[0]], parity={(AUTO, 0): Parity("equal")})
    measured.samples = [
        BenchSample(AUTO, 0, "code", repeat, replace(answer, stats=each))
        for repeat, each in enumerate(stats)
    ]
    report = summarise(engine, measured, BenchConfig(), [], None, None)
    assert report.figures[0].by_position == (4 / 10, 1.0)


def test_report_is_plain_json(report):
    """Other programs must be able to read a report."""
    values = json.loads(json.dumps(report.as_values()))
    assert values["interrupted_reason"] is None and values["parity"] and values["verdict"]["why"]


def test_two_runs_can_be_compared(report, tmp_path):
    """A change that slows down one kind of prompt must be visible."""
    file = tmp_path / "earlier.json"
    file.write_text(json.dumps(report.as_values()))
    shown = list(side_by_side(read_earlier(file), report))
    assert len(shown) == 3 + len(report.figures)
    assert all("+0.0%" in line for line in shown[3:])


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.figures, self.loads = [], 0, []

    def handle_starttag(self, tag, attrs):
        if tag != "meta":
            self.open.append(tag)
        self.figures += tag == "svg"
        self.loads += [value for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_is_well_formed_and_loads_nothing(report):
    """A page that loads a script shows nothing on a machine without network."""
    parsed = _Page()
    parsed.feed(page(report))
    assert parsed.open == [] and parsed.loads == []
    assert parsed.figures == 5


def test_page_escapes_the_text_of_a_model(engine):
    """A model can write HTML tags; the page must not execute them."""
    measured = BenchRun([PROMPTS[0]], texts={0: "<script>alert(1)</script>"})
    shown = page(summarise(engine, measured, BenchConfig(), [], None, None))
    assert "<script>" not in shown and "&lt;script&gt;" in shown


def test_an_interrupted_run_keeps_what_it_measured(engine):
    """Ctrl-C after an hour lost all results."""

    def progress(text):
        if text.startswith("repeat 1 of 3, prompt 2"):
            raise KeyboardInterrupt

    seen = []

    def interrupting(text):
        seen.append(text)
        progress(text)

    measured = run(engine, PROMPTS, BenchConfig(n_tokens=4), interrupting)
    assert measured.interrupted_reason == INTERRUPT_REASON
    report = summarise(engine, measured, BenchConfig(n_tokens=4), [], None, None)
    assert {figure.kind for figure in report.figures} >= {"code"}
    assert any("interrupted" in line for line in lines(report))


def test_arms_take_turns_in_coming_first(engine):
    """A machine that warms up favours the arm that always comes first."""
    seen = []
    run(engine, PROMPTS, BenchConfig(n_tokens=2, repeats=2), seen.append)
    firsts = [text.split(", ")[-1] for text in seen if text.startswith("repeat")][::2]
    assert sorted(firsts) == [AUTO, AUTO, PLAIN, PLAIN]


def test_copies_are_an_arm_of_their_own(engine):
    """Copies within auto would hide what the draft model gains."""
    config = BenchConfig(n_tokens=12, repeats=1, copies=True)
    measured = run(engine, PROMPTS[:1], config, lambda text: None)
    answers = {sample.arm: sample.answer for sample in measured.samples}
    assert list(answers) == [PLAIN, AUTO, "auto + copies"]
    assert len({answer.tokens for answer in answers.values()}) == 1
    assert "copy" not in answers[AUTO].stats.sources


def test_verdict_is_off_where_drafting_loses(report):
    """A peer recommended drafting by acceptance: 88%, at half the throughput."""
    slow = [
        replace(figure, speedup=spread([0.5 if figure.arm != PLAIN else 1.0]))
        for figure in report.figures
    ]
    found = verdict(slow)
    assert found["on"] is False and found["setting"] == "--draft none"
    fast = [replace(figure, speedup=spread([1.8])) for figure in slow if figure.arm == AUTO]
    assert verdict([*slow, *fast])["on"] is True


def test_verdict_needs_an_arm_other_than_plain_decoding(report):
    """A run interrupted after one plain answer recommended plain decoding."""
    plain = [figure for figure in report.figures if figure.arm == PLAIN]
    assert verdict(plain)["on"] is None


def test_a_different_text_in_a_timed_answer_is_found(engine, monkeypatch):
    """Auto chooses block sizes by the clock, so a wrong kernel may run in a later answer only."""
    answers = DFlashArm.answer
    count = []

    def answer(arm, engine, prompt, n_tokens):
        found = answers(arm, engine, prompt, n_tokens)
        count.append(arm)
        wrong = tuple((token + 1) % 50 for token in found.tokens)
        return replace(found, tokens=wrong) if len(count) == len(PROMPTS) + 1 else found

    monkeypatch.setattr(DFlashArm, "answer", answer)
    measured = run(engine, PROMPTS, BenchConfig(n_tokens=4, repeats=1), lambda text: None)
    verdicts = [measured.parity[AUTO, index].verdict for index in range(len(PROMPTS))]
    assert sorted(verdicts) == ["different", "equal"]


def test_an_error_late_in_a_run_keeps_what_was_measured(engine, monkeypatch):
    """An out-of-memory error in the third hour lost the results of the first two."""
    answers = PlainArm.answer

    def answer(arm, engine, prompt, n_tokens):
        if len(seen) > 8:
            raise RuntimeError("out of memory")
        return answers(arm, engine, prompt, n_tokens)

    monkeypatch.setattr(PlainArm, "answer", answer)
    seen = []
    measured = run(engine, PROMPTS, BenchConfig(n_tokens=4), seen.append)
    assert "out of memory" in measured.interrupted_reason
    assert any(sample.repeat >= 0 for sample in measured.samples)


@pytest.mark.parametrize(
    "values", [{"n_tokens": 0}, {"repeats": 0}, {"cool_down_s": math.nan}, {"contexts": (0,)}]
)
def test_impossible_settings_are_refused(values):
    """Zero tokens ended in a division by zero after the model was loaded."""
    with pytest.raises(BadRequest):
        BenchConfig(**values)


def test_a_run_without_prompts_or_draft_is_refused(engine, target):
    """Missing prompts, too large block sizes and missing drafts are found before measuring."""
    quiet = lambda text: None  # noqa: E731
    with pytest.raises(BadRequest, match="no prompts"):
        run(engine, [], BenchConfig(), quiet)
    with pytest.raises(BadRequest, match="the context length is"):
        run(engine, [], BenchConfig(contexts=(engine.loaded.context_length + 500,)), quiet)
    with pytest.raises(BadRequest, match="1 to 8"):
        run(engine, PROMPTS, BenchConfig(block_sizes=(9,)), quiet)
    alone = Engine(loaded_pair(Pair(target)), engine.worker)
    with pytest.raises(BadRequest, match="no draft"):
        run(alone, PROMPTS, BenchConfig(), quiet)


def test_the_package_has_prompts_of_every_kind():
    """A benchmark must run without network."""
    assert {prompt.kind for prompt in bundled(KINDS, 9)} == set(KINDS)
    with pytest.raises(BadRequest, match="poetry"):
        bundled(["poetry"], 1)


def test_long_documents_grow():
    """A context sweep needs prompts of different lengths."""
    assert len(long_document(10).text) > 8 * len(long_document(1).text)


def test_prompts_come_from_files_of_many_shapes(tmp_path):
    """Data sets have different fields and file formats."""
    shapes = {
        "a.jsonl": '{"question": "one"}\n\n{"prompt": ["two", "more"]}\n',
        "b.json": '["one", {"text": "two"}]',
        "c.txt": "one\n\ntwo\n",
    }
    for name, text in shapes.items():
        (tmp_path / name).write_text(text)
        found = data_set(str(tmp_path / name), 9)
        assert [prompt.text for prompt in found] == ["one", "two"], name


def test_a_line_of_json_ends_where_the_line_does(tmp_path):
    """Texts from the web contain U+2028, which `str.splitlines` takes for the end of a line."""
    (tmp_path / "set.jsonl").write_text('{"prompt": "one\u2028two"}\n')
    assert [prompt.text for prompt in data_set(str(tmp_path / "set.jsonl"), 9)] == ["one\u2028two"]


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '[{"nothing": 1}]', "", "[" * 200_000, '["\\ud800"]', "[1e999, {}, [[]]]"],
    ids=lambda text: text[:20],
)
def test_an_unreadable_data_set_is_refused_in_one_line(tmp_path, text):
    """A traceback of the JSON module does not tell the user what is needed."""
    file = tmp_path / "set.json"
    file.write_text(text)
    with pytest.raises(BadRequest, match=r"set\.json.*; it needs one text per line"):
        data_set(str(file), 3)


@pytest.mark.parametrize(
    ("name", "contents"),
    [
        ("set.jsonl.gz", gzip.compress(b'{"prompt": "one"}\n')[:-9]),
        ("set.json.gz", b"\x1f\x8b\x08\x00garbage"),
        ("set.jsonl", b'{"prompt": "\xff"}'),
        ("set.txt", b"x" * (2**23 + 1)),
    ],
    ids=["truncated", "not gzip", "not UTF-8", "too long"],
)
def test_a_damaged_data_set_is_refused_in_one_line(tmp_path, name, contents):
    """zlib, gzip and codecs raise types of their own, which ended in a traceback."""
    (tmp_path / name).write_bytes(contents)
    with pytest.raises(BadRequest, match="cannot be read") as refused:
        data_set(str(tmp_path / name), 3)
    assert "\n" not in str(refused.value)


def test_only_the_requested_prompts_are_read(tmp_path):
    """A data set of many gigabytes was read whole for two prompts."""
    file = tmp_path / "set.jsonl"
    file.write_text('{"prompt": "one"}\n{"prompt": "two"}\nnot JSON\n')
    assert [prompt.text for prompt in data_set(str(file), 2)] == ["one", "two"]


def test_a_cached_data_set_makes_no_request(tmp_path, monkeypatch):
    """A data set downloaded before could not be used without network."""
    brought = tmp_path / "main/test.jsonl"
    brought.parent.mkdir()
    brought.write_text('{"question": "one"}')
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda _, name, **__: tmp_path / name)
    monkeypatch.setattr("dflash_mlx.hub.data_sets.list_files", lambda *_, **__: 1 / 0)
    assert [prompt.text for prompt in data_set("gsm8k", 3)] == ["one"]


def test_an_unknown_data_set_is_refused_with_the_known_names():
    """A misspelled name must not start a download."""
    with pytest.raises(BadRequest, match="humaneval"):
        data_set("human-eval-plus-plus", 3)


def test_the_forward_of_a_plain_step_contains_no_draft(engine):
    """A plain step timed with a draft makes every block size look better."""
    (one,) = forwards(engine, prompt_ids(engine, PROMPTS[0]), [1])
    assert isinstance(one, Forward) and one.draft_s == 0.0 < one.verify_s


def test_throughput_excludes_prefill():
    """Throughput that includes prefill hides the difference between arms."""
    assert ArmAnswer((1, 2, 3, 4), 2.0, 9.0, 5, (), 0).throughput == 2.0
