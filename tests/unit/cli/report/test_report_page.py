"""The report of runs: every run gives a page that is complete, closed in itself, and escaped."""

import base64
import dataclasses
import json
import os
import shutil
import stat
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from penstock.cli.report.contents import PANELS, read_runs
from penstock.cli.report.page import page, write, write_at_end
from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.runs.folder import RunFolder
from penstock.runs.metrics import load_metrics
from penstock.runs.summary import EvaluationOutcome
from tests.rules import for_each
from tests.unit.runs.test_summary import STATISTICS, SUMMARY

OLD = sorted((Path(__file__).parents[3] / "compatibility").glob("*/run"))
NAMES = [name for panels in PANELS.values() for panel in panels for name in panel.lines]
ENDED = dataclasses.replace(
    SUMMARY,
    evaluation=EvaluationOutcome(20, 480.0, 5.0),
    threshold=475.0,
    env_steps=3_000,
    env_steps_to_threshold=2_000,
    learn_wall_s_to_threshold=1.0,
)
VOID = {"meta", "br", "path"}


class Elements(HTMLParser):
    """The open elements of a page, each of which must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.opened

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe", "a")
        assert not {name for name, _ in attrs} & {"href", "srcset"}
        assert all((value or "").startswith("data:video/mp4;") for name, value in attrs if name == "src")
        if tag not in VOID or (tag == "path" and not self.get_starttag_text().endswith("/>")):  # type: ignore[union-attr]
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID or (self.opened and self.opened[-1] == tag):
            assert self.opened.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag == "path"

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def checked(text: str, most_bytes: int = 500_000) -> str:
    """Returns the text of a page that is well formed, names no other file and fits a mail."""
    texts = " ".join(Elements(text).texts)
    assert "http:" not in text and "https:" not in text and "url(" not in text
    assert len(text.encode()) < most_bytes
    return texts


def records(count: int, steps: int = 1_000) -> list[dict[str, object]]:
    random = np.random.default_rng(1)
    trained = [
        {
            "kind": "training",
            "env_steps": (index + 1) * steps,
            "training_s": float(index + 1),
            "episodes": index,
            "return_mean": float(index),
            "episode_return_mean": float(random.normal(index, 20.0)),
            **{name: float(random.lognormal()) for name in NAMES},
        }
        for index in range(count)
    ]
    evaluated = [
        {"kind": "evaluation", "env_steps": each["env_steps"], "return_mean": 480.0, "return_std": 1.0}
        for each in trained[:: max(1, count // 20)]
    ]
    return [*trained, *evaluated]


def make(root: Path, found: list[dict[str, object]], **settings: object) -> RunFolder:
    folder = RunFolder(root)
    root.mkdir()
    folder.config.write_text(Config(**{"env_id": "CartPole-v1", "threshold": 475.0, **settings}).to_toml())
    folder.metrics.write_text("".join(json.dumps(each) + "\n" for each in found))
    return folder


def test_a_run_has_its_result_its_curves_and_its_settings(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", records(3), seed=7)
    ENDED.write(folder.summary)
    write([folder], folder.report)
    text = checked(folder.report.read_text())
    for part in (
        "solved: 480.0 (threshold 475) after 2,000 steps",
        "ended by total_steps",
        "480.0 ± 5.0",
        "fresh segments",
        "50.0%",
        "run.seed",
        *(panel.title for panels in PANELS.values() for panel in panels),
    ):
        assert part in text, part
    assert stat.S_IMODE(folder.report.stat().st_mode) == 0o600


def test_hints_are_those_of_the_run(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", records(3))
    drops = dataclasses.replace(STATISTICS.drops, refused_steps=3)
    unsolved = dataclasses.replace(
        ENDED, env_steps_to_threshold=None, statistics=dataclasses.replace(STATISTICS, drops=drops)
    )
    unsolved.write(folder.summary)
    assert "3 gradient steps were refused" in checked(page(read_runs([folder])))


ODD = {
    "no episode": [{"kind": "training", "env_steps": 8, "training_s": 1.0, "episodes": 0, "return_mean": None}],
    "one evaluation": [{"kind": "evaluation", "env_steps": 0, "return_mean": 1.0}],
    "numbers that are none": [
        {"kind": "training", "env_steps": 8 * index, "training_s": 1.0, **dict.fromkeys([*NAMES, "return_mean"], value)}
        for index, value in enumerate([float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 0.0])
    ],
    "one record": records(1)[:1],
    "nothing": [],
}


@pytest.mark.parametrize("case", ODD)
def test_every_journal_gives_a_page(case: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "run", ODD[case])
    text = page(read_runs([folder]))
    assert "CartPole-v1" in checked(text)
    assert not {"nan", "inf"} & set(text.replace('"', " ").replace("<", " ").replace(">", " ").split())


def test_the_newest_films_are_in_the_page_within_its_bound(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", records(3))
    folder.videos.mkdir()
    for number, size in enumerate((10, 20, 2_000_000, 2_000_000, 30)):
        film = folder.videos / f"version-{number}.mp4"
        film.write_bytes(bytes([number]) * size)
        os.utime(film, (number, number))
    whole = page(read_runs([folder]), with_films=True)
    text = checked(whole, 4_100_000)
    assert [f"version-{number}" in text for number in range(5)] == [False, False, False, True, True]
    assert base64.b64encode(b"\4" * 30).decode() in whole
    assert "videos/ has 3 more." in text
    assert "version-4" not in page(read_runs([folder]))
    both = page(read_runs([folder, make(tmp_path / "other", records(3))]), with_films=True)
    assert both.count("<video") == 1 and "run: version-4" in checked(both)


def test_a_last_line_that_is_cut_is_left_out(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", records(3)[:3])
    whole = folder.metrics.read_text()
    folder.metrics.write_text(whole[:-30])
    assert "2,000 steps" in checked(page(read_runs([folder])))


@for_each("old", OLD)
def test_runs_of_earlier_releases_have_a_page(old: Path) -> None:
    text = checked(page(read_runs([RunFolder(old)])))
    assert "CartPole-v1" in text and "entropy, nats" in text and "ended by total_steps" in text


def test_texts_of_users_are_escaped(tmp_path: Path) -> None:
    odd = "</script><b>&"
    folder = make(tmp_path / odd.replace("/", "|"), records(2), env_kwargs={"title": odd})
    text = page(read_runs([folder]))
    assert "<b>&" not in text and "</script>" not in text
    assert "&lt;/script&gt;&lt;b&gt;&amp;" in text
    assert odd in checked(text)
    both = page(read_runs([folder, make(tmp_path / "other", records(2))]))
    assert "<b>&" not in both and odd in checked(both)


def test_runs_that_differ_by_seed_share_a_line_and_others_are_compared(tmp_path: Path) -> None:
    folders = [make(tmp_path / f"seed-{seed}", records(30), seed=seed) for seed in (1, 2)]
    folders.append(make(tmp_path / "slow", records(30), seed=1, learning_rate=0.125))
    ENDED.write(folders[0].summary)
    source = page(read_runs(folders))
    text = checked(source)
    assert "2 seeds, mean and range" in text and "ppo.learning_rate 0.125, seed 1" in text
    for name in ("seed-1", "seed-2", "slow"):
        assert name in text
    assert source.count("<details>") == 3 and source.count('class="chart large"') == 1


def test_runs_of_several_environments_have_charts_of_their_own(tmp_path: Path) -> None:
    folders = [make(tmp_path / name, records(3), env_id=name) for name in ("CartPole-v1", "Pendulum-v1")]
    source = page(read_runs(folders))
    text = checked(source)
    assert "Returns of CartPole-v1" in text and "Returns of Pendulum-v1" in text
    assert source.count('class="chart large"') == 2


def test_the_size_of_a_page_is_bounded(tmp_path: Path) -> None:
    longest = make(tmp_path / "long", records(20_000, 500), env_kwargs={"text": "x" * 100_000})
    assert "10,000,000 steps" in checked(page(read_runs([longest])))
    for index in range(30):
        shutil.copytree(longest.root, tmp_path / f"{index}")
        config = RunFolder(tmp_path / f"{index}").config
        config.write_text(config.read_text().replace("learning_rate = 0.00", f"learning_rate = 0.{index:02}"))
        metrics = RunFolder(tmp_path / f"{index}").metrics
        metrics.write_text("\n".join(metrics.read_text().splitlines()[:500]))
    checked(page(read_runs([RunFolder(tmp_path / f"{index}") for index in range(30)])))


def test_the_result_of_an_earlier_session_is_not_that_of_one_that_was_killed(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", records(5))
    ENDED.write(folder.summary)
    text = checked(page(read_runs([folder])))
    assert "solved" not in text and "interrupted before" in text and "5,000 steps" in text


def test_a_learner_that_does_not_answer_is_named(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", records(3))
    ENDED.write(folder.summary)
    folder.services.write_text("{}")
    assert "its learner does not answer: " in checked(page(read_runs([folder])))


def test_thinned_records_keep_both_ends_and_all_evaluations(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", records(100))
    metrics = load_metrics(folder.root, most_training=5)
    steps = metrics.training["env_steps"] / 1_000
    assert steps.tolist() == [1.0, 34.0, 67.0, 99.0, 100.0]
    assert len(metrics.evaluation["env_steps"]) == 20
    assert len(load_metrics(folder.root, most_training=100).training["env_steps"]) == 100


def test_a_folder_that_can_not_be_written_is_one_line(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", records(3))
    folder.report.mkdir()
    said = write_at_end(folder)
    assert said.startswith(f"the report is not written: can't write {folder.report}: ") and "\n" not in said
    with pytest.raises(ConfigurationError, match="choose another file with penstock report --output"):
        write([folder], folder.report)


def test_the_end_of_a_run_is_not_lost_to_an_unforeseen_journal(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", [])
    folder.metrics.write_text('{"kind": "training", "env_steps": 1%s}\n' % ("0" * 400))
    assert write_at_end(folder).startswith("the report is not written: OverflowError: ")
    folder.metrics.unlink()
    assert write_at_end(folder) == ""
