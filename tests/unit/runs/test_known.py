"""Commands mean the newest run, or a run by its name or its path."""

import os
from pathlib import Path

import pytest

from penstock.cli.named import chosen_run
from penstock.cli.options import parse
from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.runs.folder import has_checkpoint, has_records
from penstock.runs.known import known_runs, newest_run, run_named


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, in which three runs were started, b last, and a folder is no run."""
    monkeypatch.chdir(tmp_path)
    for started, name in enumerate(("c", "a", "b")):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(Config(environment={"id": "Pendulum-v1"}, run={"seed": started}).to_toml())
        os.utime(folder / "config.toml", (started, started))
    (tmp_path / "runs" / "notes").mkdir()
    return tmp_path


def test_the_run_that_was_started_last_is_the_newest(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [folder.root.name for folder in known_runs()] == ["b", "a", "c"]
    assert chosen_run(None) == Path("runs/b")
    assert capsys.readouterr().err == "the newest run is runs/b\n"


def test_a_run_without_what_a_command_needs_is_skipped_and_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, file in (("c", "checkpoints/000000000005.safetensors"), ("a", "checkpoints/best.safetensors.part")):
        (here / "runs" / name / "checkpoints").mkdir()
        (here / "runs" / name / file).write_bytes(b"1")
    (here / "runs" / "b" / "metrics.jsonl").touch()
    (here / "runs" / "a" / "metrics.jsonl").write_text("{}\n")
    assert chosen_run(None, has_checkpoint, "a checkpoint") == Path("runs/c")
    assert capsys.readouterr().err == (
        "the newest run with a checkpoint is runs/c\nskipped, without a checkpoint: runs/b, runs/a\n"
    )
    assert chosen_run(None, has_records, "records") == Path("runs/a")
    assert chosen_run("b", has_checkpoint, "a checkpoint") == Path("runs/b")


def test_if_no_run_has_what_a_command_needs_the_newest_is_named(here: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no run with a checkpoint in .*runs \(the newest, b, .*; start one"):
        chosen_run(None, has_checkpoint, "a checkpoint")


def test_a_run_is_named_by_its_path_or_by_its_name(here: Path) -> None:
    assert run_named("a") == run_named("runs/a") == Path("runs/a")
    (here / "a").mkdir()
    assert run_named("a") == Path("a")
    assert run_named(str(here / "runs" / "c")) == here / "runs" / "c"
    assert run_named("nowhere") == Path("nowhere")


def test_a_name_that_resembles_a_run_has_a_suggestion(here: Path) -> None:
    (here / "runs" / "c").rename(here / "runs" / "CartPole-v1-20261125-180709")
    with pytest.raises(
        ConfigurationError, match=r"no run 'runs/Cartpole-v1-20261125'; did you mean runs/CartPole-v1-2"
    ):
        run_named("runs/Cartpole-v1-20261125")


@pytest.mark.parametrize(("options", "seed"), [(["--resume"], 2), (["--resume", "a"], 1), (["--resume", "runs/c"], 0)])
def test_a_run_is_resumed_by_name(here: Path, options: list[str], seed: int) -> None:
    parsed = parse("penstock train", "", [*options, "--total-steps", "9"], trains=True)
    assert (parsed.config.run.seed, parsed.config.run.total_steps) == (seed, 9)
    assert parsed.config.run.dir == str(parsed.resume) == f"runs/{'cab'[seed]}"


def test_without_runs_there_is_none_to_choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"there is no run in .*runs; start one with penstock train"):
        newest_run(lambda folder: True, "")
