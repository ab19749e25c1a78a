"""The report on made-up numbers: they must come out unchanged in the table, the JSON and the page."""

import copy
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from luke.artifacts import METADATA_FILE
from luke.commands.pretraining_report import command
from luke.errors import UserError
from luke.pretraining import report as reports

HOSTILE = "<script>alert('x')</script> & \"R\"[bold]"

FIGURES: dict[str, tuple[float, ...]] = {  # word loss, word accuracy, entity loss, accuracy@1, @5, mean reciprocal rank
    "before": (10.25, 0.0, 8.5, 0.0004, 0.001, 0.0015),
    "stage1": (6.125, 0.1434, 5.75, 0.0912, 0.2, 0.1405),
    "stage2": (4.0625, 0.3517, 4.875, 0.2345, 0.4123, 0.3126),
}
BASELINES = {
    "most_frequent": {"accuracy_at_1": 0.0067, "accuracy_at_5": 0.031, "mean_reciprocal_rank": 0.0214},
    "same_anchor": {"accuracy_at_1": 0.4119, "accuracy_at_5": 0.4236, "mean_reciprocal_rank": 0.2988},
}


def made_up_evaluation(name: str) -> dict[str, Any]:
    word_loss, word_accuracy, entity_loss, at_1, at_5, reciprocal = FIGURES[name]
    rank = {"before": 1234, "stage1": 17, "stage2": 2}[name]
    example = {"before": "born in", "mention": HOSTILE, "after": "he left", "entity": "R & <D>", "rank": rank}
    other = {**example, "mention": "Athens", "entity": "Athens, Greece"}
    return {
        "made_from": {
            "inputs": {
                "dataset": {"path": "dataset", "fingerprint": "d"},
                "model": {"path": name, "fingerprint": name},
            },
            "options": {"comparable": {"masking": {"masked_lm_prob": 0.15}, "passes": 4}, "examples": 2, "start": None},
        },
        "masked_words": {"loss": word_loss, "accuracy": word_accuracy, "count": 43210},
        "masked_entities": {
            "loss": entity_loss,
            "accuracy_at_1": at_1,
            "accuracy_at_5": at_5,
            "mean_reciprocal_rank": reciprocal,
            "count": 2431,
        },
        "baselines": BASELINES,
        "examples": [
            {**example, "best": ["Rome", "R & <D>", "Sparta", "Plato", "Greece"]},
            {**other, "best": ["Rome", "Corinth", "Sparta", "Plato", "Greece"]},
        ],
    }


def metrics_line(step: int, **changes: Any) -> dict[str, Any]:
    line = {
        "step": step,
        "loss": 9.0,
        "masked_lm_loss": 5.0,
        "masked_entity_loss": 4.0,
        "tokens_per_second": 1000.0,
        "entities_per_second": 40.0,
        "padding_share": 0.02,
        "data_wait_share": 0.125,
        "seconds_per_step": 2.0,
        "memory_gib": 1.5,
    }
    return {**line, **changes}


def write_run(folder: Path, lines: list[dict[str, Any]]) -> None:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def write_inputs(folder: Path) -> Path:
    for name in FIGURES:
        (folder / f"{name}.json").write_text(json.dumps(made_up_evaluation(name)), encoding="utf-8")
    write_run(folder / "run1", [metrics_line(step) for step in range(1, 41)])
    # Three steps at 1,000 words/s, then one step of six seconds at 500.
    write_run(
        folder / "run2",
        [metrics_line(3), metrics_line(4, tokens_per_second=500.0, seconds_per_step=6.0, memory_gib=2.25)],
    )
    return folder


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    return write_inputs(tmp_path)


def make(inputs: Path, output: str = "report", title: str = "A run") -> reports.Report:
    files = (inputs / f"{name}.json" for name in FIGURES)
    return reports.write_report(*files, inputs / "run1", inputs / "run2", inputs / output, title)


def arguments(inputs: Path) -> list[str]:
    pairs = {
        **{f"--{name}": inputs / f"{name}.json" for name in FIGURES},
        "--stage1-run": inputs / "run1",
        "--stage2-run": inputs / "run2",
        "--output": inputs / "report",
    }
    return [str(word) for pair in pairs.items() for word in pair]


class Page(HTMLParser):
    """What a browser would see: text outside of style, tags, attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._within: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._within.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._within:
            while self._within.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if "style" not in self._within:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).replace("\u00a0", " ").split())

    def with_class(self, name: str) -> list[str]:
        return [tag for tag, attributes in self.tags if name in (attributes.get("class") or "").split()]


@dataclass
class Made:
    """A report that was made once, for the tests that only look at it."""

    folder: Path
    report: reports.Report
    html: str
    page: Page


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = write_inputs(tmp_path_factory.mktemp("made"))
    report = make(folder, title=HOSTILE)
    html = (folder / "report" / "report.html").read_text(encoding="utf-8")
    return Made(folder / "report", report, html, Page(html))


def test_json_holds_all_numbers(made: Made) -> None:
    report = json.loads((made.folder / "report.json").read_text(encoding="utf-8"))
    assert report == made.report
    for name, key in (("before", "before"), ("stage1", "stage_1"), ("stage2", "stage_2")):
        evaluation = made_up_evaluation(name)
        assert report["models"][key] == {block: evaluation[block] for block in ("masked_words", "masked_entities")}
    assert report["baselines"] == BASELINES
    assert report["accuracy_at_1_over_most_frequent"] == pytest.approx(35.0)
    assert report["examples"][0]["ranks"] == {"before": 1234, "stage_1": 17, "stage_2": 2}
    assert report["runs"]["stage_1"]["curves"]["step"] == list(range(1, 41))


def test_run_is_summed_up_over_its_time(made: Made) -> None:
    summary = made.report["runs"]["stage_2"]["summary"]
    assert summary["steps"] == 4
    assert summary["seconds"] == 3 * 2.0 + 6.0
    assert summary["seconds_per_step"] == 3.0
    assert summary["tokens_per_second"] == (6 * 1000 + 6 * 500) / 12
    assert summary["memory_gib"] == 2.25


def test_page_is_self_contained_and_holds_the_figures(made: Made) -> None:
    page, html = made.page, made.html
    for text in (
        "10.250",
        "35.2 %",
        "23.4 %",
        "0.67 %",
        "41.2 %",
        "0.313",
        "43,210",
        "35.0 ×",
        "[CLS] and [SEP]",
    ):
        assert text in page.text, text
    loaded = [
        value
        for _, attributes in page.tags
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href") and value
    ]
    assert not [value for value in loaded if not value.startswith("#")]
    assert "url(http" not in html and "@import" not in html
    pictures = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(pictures) == 2 and all(picture["role"] == "img" and picture["aria-label"] for picture in pictures)
    # The figures take the page's colours, so that they are readable in light and in dark.
    assert "#0a0b0" not in html and "stroke: var(--first)" in html


def test_best_of_each_column_is_marked(made: Made) -> None:
    rows = dict(reports.figure_rows(made.report["models"], BASELINES))
    assert [best for _, best in rows["stage_2"]] == [True, True, True, False, False, True]
    assert [best for _, best in rows["same anchor text"]] == [False, False, False, True, True, False]
    assert [text for text, _ in rows["same anchor text"]] == ["–", "–", "–", "41.2 %", "42.4 %", "0.299"]
    assert not any(best for _, best in rows["before"])


def test_hostile_text_is_escaped(made: Made) -> None:
    page = made.page
    assert page.text.count(HOSTILE) == 3  # title, heading, mention: as text, unchanged
    assert "R & <D>" in page.text
    assert {"script", "d", "bold"}.isdisjoint(tag for tag, _ in page.tags)


def test_right_answer_is_marked_only_where_it_is(made: Made) -> None:
    page = made.page
    # Of the two examples, one has the right entity among its five best.
    assert page.with_class("right") == ["li"]
    assert len(page.with_class("mention")) == 2
    assert "Its rank: 1,234 before training, 17 after stage 1, 2 after stage 2." in page.text


def test_sentences_say_who_wins_at_what() -> None:
    strong = {"accuracy_at_1": 0.5, "accuracy_at_5": 0.6, "mean_reciprocal_rank": 0.55}
    weak = {"accuracy_at_1": 0.05, "accuracy_at_5": 0.06, "mean_reciprocal_rank": 0.055}
    figures = (
        "accuracy@1 (50.0 % against 5.00 %), accuracy@5 (60.0 % against 6.00 %) "
        "and mean reciprocal rank (0.550 against 0.055)"
    )
    assert reports.compare(strong, weak, "the x baseline") == (
        f"The model after stage 2 is better than the x baseline at {figures}."
    )
    assert reports.compare(weak, strong, "the x baseline") == (
        f"The x baseline is better than the model after stage 2 at {figures}."
    )
    mixed = reports.compare(strong, {**strong, "accuracy_at_1": 0.7, "accuracy_at_5": 0.4}, "the x baseline")
    assert mixed == (
        "The x baseline is better than the model after stage 2 at accuracy@1 (70.0 % against 50.0 %); "
        "the model after stage 2 is better than the x baseline at accuracy@5 (60.0 % against 40.0 %); "
        "the model after stage 2 and the x baseline are equal at mean reciprocal rank (0.550 against 0.550)."
    )


def test_findings_follow_the_numbers(made: Made) -> None:
    assert made.report["findings"] == [
        "The model after stage 2 is better than the most-frequent-entity baseline at accuracy@1 (23.4 % against 0.67 %), "
        "accuracy@5 (41.2 % against 3.10 %) and mean reciprocal rank (0.313 against 0.021).",
        "After stage 2, accuracy@1 is 35.0 times that of the most-frequent-entity baseline.",
        "The anchor-text baseline is better than the model after stage 2 at accuracy@1 (41.2 % against 23.4 %) and "
        "accuracy@5 (42.4 % against 41.2 %); the model after stage 2 is better than the anchor-text baseline at "
        "mean reciprocal rank (0.313 against 0.299).",
        "Masked-word loss fell from 10.250 before training to 4.062 after stage 2 (6.125 after stage 1).",
        "Masked-entity loss fell from 8.500 before training to 4.875 after stage 2 (5.750 after stage 1).",
    ]


def test_worse_model_and_useless_baseline_are_said_plainly(made: Made) -> None:
    models = copy.deepcopy(made.report["models"])
    models["stage_2"]["masked_words"]["loss"] = 12.0
    never_right = {**BASELINES, "most_frequent": {**BASELINES["most_frequent"], "accuracy_at_1": 0.0}}
    sentences = reports.findings(models, never_right)
    assert "Masked-word loss rose from 10.250 before training to 12.000 after stage 2 (6.125 after stage 1)." in sentences
    assert "The most-frequent-entity baseline is never right here, so there is no ratio of accuracy@1 to it." in sentences


def test_long_run_is_thinned_and_smoothed() -> None:
    steps = np.arange(1.0, 2002.0)
    metrics = {"step": steps, "masked_lm_loss": np.where(steps % 2, 3.0, 5.0)}
    curves = reports.curves(metrics)
    assert len(curves["step"]) <= 500
    assert curves["step"][:2] == [3.0, 8.0]  # means of five steps each
    assert np.allclose(curves["masked_lm_loss_smoothed"], 4.0, atol=0.3)


def test_smoothing_skips_what_is_not_a_number() -> None:
    values = np.full(100, 2.0)
    values[50] = np.nan
    assert reports.smooth(values).tolist() == [2.0] * 100


def test_run_without_masked_words(inputs: Path) -> None:
    lines = [{name: value for name, value in metrics_line(step).items() if name != "masked_lm_loss"} for step in (1, 2)]
    for run in ("run1", "run2"):
        (inputs / run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    make(inputs)
    html = (inputs / "report" / "report.html").read_text(encoding="utf-8")
    assert "Stage 1: masked entities" in html and "Stage 1: masked words" not in html


def test_line_that_is_being_written_is_left_out(inputs: Path) -> None:
    with (inputs / "run1" / "metrics.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"step": 41, "lo')
    assert reports.read_metrics(inputs / "run1")["step"].tolist() == list(range(1, 41))


def test_loss_that_diverged_is_null_in_json(inputs: Path) -> None:
    write_run(inputs / "diverged", [metrics_line(1), metrics_line(2, masked_lm_loss=float("nan"))])
    runs = {name: reports.read_metrics(inputs / "diverged") for name in reports.RUNS}
    evaluations = {key: made_up_evaluation(name) for key, name in zip(reports.MODELS, FIGURES, strict=True)}
    report = reports.build_report(evaluations, runs, dict.fromkeys(reports.MODELS, Path("x.json")), "t")
    assert report["runs"]["stage_1"]["curves"]["masked_lm_loss"] == [5.0, None]
    json.dumps(report, allow_nan=False)
    assert "<svg" in reports.render_html(report)


def test_command_prints_the_tables_and_a_second_run_does_nothing(inputs: Path) -> None:
    first = CliRunner().invoke(command, arguments(inputs))
    assert first.exit_code == 0, first.output
    assert re.search(r"after stage 2 +│ +4\.062 │ +35\.2 % │ +4\.875 │ +23\.4 % │ +41\.2 % │ 0\.313", first.output)
    assert re.search(r"most frequent entity +│ +– │ +– │ +– │ +0\.67 % │ +3\.10 % │ 0\.021", first.output)
    assert re.search(r"Stage 2 │ +4 │ +0\.2 │ +3\.00 │ +750 │", first.output)
    assert "The anchor-text baseline is better than the model after stage 2 at accuracy@1" in first.output
    written = (inputs / "report" / "report.html").stat().st_mtime_ns
    second = CliRunner().invoke(command, arguments(inputs))
    assert second.output == first.output
    assert (inputs / "report" / "report.html").stat().st_mtime_ns == written


def test_report_of_something_else_is_not_overwritten(inputs: Path) -> None:
    make(inputs)
    with pytest.raises(UserError, match="already holds a pretraining report made with other options or input"):
        make(inputs, title="Another")
    (inputs / "mine").mkdir()
    (inputs / "mine" / "thesis.txt").write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match="holds something else"):
        make(inputs, output="mine")
    assert [path.name for path in (inputs / "mine").iterdir()] == ["thesis.txt"]


def test_nothing_is_left_when_the_page_cannot_be_made(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(report: reports.Report) -> str:
        raise UserError("no page")

    monkeypatch.setattr(reports, "render_html", fail)
    with pytest.raises(UserError, match="no page"):
        make(inputs)
    assert not list(inputs.glob("report*"))


def test_report_is_a_whole_artifact(made: Made) -> None:
    assert {path.name for path in made.folder.iterdir()} == {"report.html", "report.json", METADATA_FILE}
    metadata = json.loads((made.folder / METADATA_FILE).read_text(encoding="utf-8"))
    assert metadata["kind"] == "pretraining-report" and len(metadata["inputs"]) == 5


@pytest.mark.parametrize("library", ["matplotlib", "jinja2"])
def test_missing_library_names_what_to_install(inputs: Path, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    monkeypatch.delitem(sys.modules, "luke.pretraining.report_figures", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=rf"{library} is not installed.*pip install 'luke\[pretraining\]'"):
        make(inputs)
    assert not list(inputs.glob("report*"))


def _set(value: dict[str, Any], path: str, new: Any) -> None:
    *blocks, key = path.split(".")
    for block in blocks:
        value = value[block]
    if new is None:
        del value[key]
    else:
        value[key] = new


@pytest.mark.parametrize(
    ("path", "new", "message"),
    [
        ("masked_words.loss", None, "the number masked_words.loss is missing"),
        ("masked_entities.accuracy_at_5", "high", "the number masked_entities.accuracy_at_5 is missing"),
        ("baselines", None, "the number baselines.most_frequent.accuracy_at_1 is missing"),
        ("made_from", None, "made_from.inputs.dataset.fingerprint is missing"),
        ("examples", None, "its examples are missing or lack one of before, mention"),
        ("examples", [{"mention": "x"}], "its examples are missing or lack one of before, mention"),
        (
            "made_from.inputs.dataset.fingerprint",
            "e",
            r"before\.json and \S*stage2\.json were evaluated on different datasets",
        ),
        ("made_from.options.comparable.passes", 5, r"before\.json and \S*stage2\.json were evaluated with different masks"),
    ],
)
def test_broken_or_unlike_evaluation_is_named(inputs: Path, path: str, new: Any, message: str) -> None:
    evaluation = made_up_evaluation("stage2")
    _set(evaluation, path, new)
    (inputs / "stage2.json").write_text(json.dumps(evaluation), encoding="utf-8")
    with pytest.raises(UserError, match=message) as raised:
        make(inputs)
    assert "stage2.json" in str(raised.value)
    assert not list(inputs.glob("report*"))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("before.json", None, r"before\.json: not found; make it with luke evaluate-pretraining"),
        ("stage1.json", b"{\n  oops}", r"stage1\.json: not JSON at line 2, column 3"),
        ("stage1.json", b"\xff\xfe", r"stage1\.json: cannot be read"),
        ("stage1.json", b"[1, 2]", r"stage1\.json: not an evaluation"),
        ("run1/metrics.jsonl", None, r"run1/metrics\.jsonl: not found; give the output folder of luke pretrain"),
        ("run1/metrics.jsonl", b"", r"run1/metrics\.jsonl: holds no figures"),
        ("run2/metrics.jsonl", b"not json\n", r"run2/metrics\.jsonl: line 1: not JSON"),
        ("run2/metrics.jsonl", b'{"step": 1}\n', r"run2/metrics\.jsonl: line 1: the number tokens_per_second is missing"),
    ],
)
def test_missing_or_broken_file_is_named(inputs: Path, file: str, content: bytes | None, message: str) -> None:
    if content is None:
        (inputs / file).unlink()
    else:
        (inputs / file).write_bytes(content)
    with pytest.raises(UserError, match=message):
        make(inputs)
    assert not list(inputs.glob("report*"))


def test_metrics_without_losses_are_refused(inputs: Path) -> None:
    lines = [{name: value for name, value in metrics_line(1).items() if not name.startswith("masked_")}]
    write_run(inputs / "bare", lines)
    with pytest.raises(UserError, match="holds neither masked_lm_loss nor masked_entity_loss"):
        reports.read_metrics(inputs / "bare")


def test_real_command_line_ends_with_one_line_and_status_2(inputs: Path) -> None:
    (inputs / "run1" / "metrics.jsonl").unlink()
    words = [sys.executable, "-m", "luke.cli", "pretraining-report", *arguments(inputs)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        f"luke: error: {inputs}/run1/metrics.jsonl: not found; give the output folder of luke pretrain"
    ]
    assert not list(inputs.glob("report*"))
