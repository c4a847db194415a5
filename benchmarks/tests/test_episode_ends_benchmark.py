"""The benchmark of episode ends: what it reads from a peer, which treatment it names, and the page that it writes."""

import sys
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from benchmarks.ends_report import PAGE, Measured, draw, exact_table, measured_table, read, with_table
from benchmarks.episode_ends import RESULTS, TRUNCATED, WHOLE, parse, replaced
from benchmarks.peers.ends_run import ENV_ID, Task, observations, print_values
from examples.episode_ends import STATES, TOLERANCE, Treatment, exact_values


def measured(*treatments: Treatment, system: str = "a system", off: float = 0.0) -> Measured:
    """Results of a system whose seeds show these treatments, off by as much in the last state."""
    truncated = [[*exact_values(each)[:-1], exact_values(each)[-1] + off] for each in treatments]
    return Measured(system, "2026-11-23", {"a-package": "1.0"}, truncated, [list(exact_values(Treatment.CORRECT))])


@pytest.mark.parametrize("treatment", Treatment, ids=lambda each: each.name)
def test_a_system_has_the_treatment_that_all_its_seeds_show(treatment: Treatment) -> None:
    system = measured(treatment, treatment, off=TOLERANCE / 2.0)
    assert system.treatment is treatment
    assert system.error(treatment) == pytest.approx(TOLERANCE / 2.0)
    assert treatment.value in measured_table([system])


def test_seeds_that_differ_show_no_treatment() -> None:
    system = measured(Treatment.CORRECT, Treatment.TERMINATION)
    assert system.treatment is None and measured(Treatment.CORRECT, off=2.0 * TOLERANCE).treatment is None
    assert f"| none within {TOLERANCE:.2f} |  |" in measured_table([system])


def test_values_that_are_not_learnt_without_truncations_are_an_error() -> None:
    correct = list(exact_values(Treatment.CORRECT))
    system = replace(measured(Treatment.CORRECT), whole=[correct, [*correct[:2], correct[2] - 0.5, *correct[3:]]])
    assert system.error_of_whole == pytest.approx(0.5)
    assert measured(Treatment.CORRECT).error_of_whole == 0.0


def test_a_peer_gets_the_task_and_its_values_come_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for task in (TRUNCATED, replace(WHOLE, seed=7)):
        monkeypatch.delitem(gymnasium.registry, ENV_ID, raising=False)
        monkeypatch.setattr(sys, "argv", ["a_peer", *task.options()])
        assert Task.from_arguments() == task
    # As a value network returns them, with one row per state.
    print_values(observations() @ np.arange(STATES + 1, dtype=np.float32)[:, None], "gymnasium")
    learnt = parse(capsys.readouterr().out)
    assert learnt.values == tuple(range(STATES)) and learnt.versions.keys() == {"gymnasium"}


def test_systems_that_did_not_run_keep_their_results() -> None:
    before = [measured(Treatment.CORRECT, system=name) for name in ("penstock", "b", "not listed")]
    new = measured(Treatment.TERMINATION, system="b")
    after = replaced(before, new, order=["penstock", "a", "b"])
    assert [(each.system, each.treatment) for each in after] == [
        ("penstock", Treatment.CORRECT),
        ("b", Treatment.TERMINATION),
        ("not listed", Treatment.CORRECT),
    ]
    first = replaced(after, measured(Treatment.CORRECT, system="a"), order=["penstock", "a", "b"])
    assert [each.system for each in first] == ["penstock", "a", "b", "not listed"]


def test_the_page_has_the_tables_of_the_committed_results() -> None:
    text = PAGE.read_text()
    assert with_table(text, read(RESULTS)) == text, "run `make bench-episode-ends`"
    assert exact_table() in text
    assert with_table(text, [measured(Treatment.CORRECT)]) != text


def test_a_plot_is_drawn_for_any_number_of_systems(tmp_path: Path) -> None:
    for count in (0, 2):
        draw([measured(Treatment.CORRECT)] * count, tmp_path / "plot.png")
        assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
