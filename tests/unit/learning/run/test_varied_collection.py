"""Shares of variants that actors play in turn, and curricula that change these variants."""

from pathlib import Path
from typing import Any

import pytest

from penstock.config import build
from penstock.config.added_variants import check_added
from penstock.errors import ConfigurationError, TrainingFailed
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.learning.members.population import Population
from penstock.learning.report.statistics import RunStatistics
from penstock.learning.run import varied_collection
from penstock.learning.run.varied_collection import VariedCollection
from penstock.types.extents import Amounts
from penstock.types.run import ActorReport, Episode
from penstock.types.statistics import Timing


class Run:
    """A population whose variants have these returns, with a rule for its collection that is reviewed at every call."""

    def __init__(self, folder: Path, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(varied_collection, "_INTERVAL_S", 0.0)
        variants = ({"g": 5.0}, {"g": 10.0}, {"g": 15.0})
        environment: dict[str, Any] = {"id": "Pendulum-v1", "kwargs": {"render_mode": None}, "variants": variants}
        config = build({"environment": environment, "sampling": {"collection": rule}})
        statistics = RunStatistics(limits=Amounts(steps=1000), earlier_s=0.0, variants=("a", "b", "c"))
        self.statistics = statistics
        self.population = Population(
            folder / "variants.json",
            variants,
            check=lambda arguments: check_added(config.environment, arguments),
            least_share=0.2,
            writes=RetriedWrites(statistics.notice),
            notice=statistics.notice,
        )
        self.collection = VariedCollection(config, self.population, statistics)

    def returned(self, variant: int, *returns: float) -> None:
        episodes = tuple(Episode(value, 5, 0, False, variant=variant) for value in returns)
        self.statistics.report(ActorReport(15, 0.0, episodes, Timing(0.1, 0.1, 0.1, 0.1)), 0)

    @property
    def shares(self) -> dict[int, float]:
        return {each.number: each.share for each in self.population.active}


def written(folder: Path, body: str) -> str:
    """Returns the name of a curriculum with this body."""
    (folder / "own.py").write_text(f"def chosen(variants, progress):\n    {body}\n")
    return f"{folder / 'own.py'}:chosen"


def test_equal_collection_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, "equal", monkeypatch)
    run.population.changed = lambda: pytest.fail("it has changed")
    run.returned(0, 1.0)
    run.collection.review(0.5)


@pytest.mark.parametrize(
    ("rule", "shares"),
    [("return", {0: 0.2, 1: 0.8 + 0.2 / 3, 2: 1.6 + 1 / 3}), ("learnability", {0: 0.2, 1: 2.6, 2: 0.2})],
)
def test_a_rule_weighs_the_variants_by_their_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, shares: dict[int, float]
) -> None:
    run = Run(tmp_path, rule, monkeypatch)
    for variant, returns in enumerate(([10.0] * 10, [10.0, 0.0] * 5, [0.0] * 10)):
        run.returned(variant, *returns)
    run.collection.review(0.5)
    assert run.shares == pytest.approx(shares, abs=0.1)
    assert sum(run.shares.values()) == pytest.approx(3.0)


def test_a_curriculum_of_ones_own_may_return_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, written(tmp_path, "return [each.arguments['g'] for each in variants]"), monkeypatch)
    run.collection.review(0.5)
    assert run.shares == pytest.approx({0: 0.5, 1: 1.0, 2: 1.5})


def test_a_curriculum_of_ones_own_may_return_the_variants_to_play(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "return [{'g': 10.0}, {'g': 20.0 * progress}, {'g': 20.0 * progress}]"
    run = Run(tmp_path, written(tmp_path, body), monkeypatch)
    run.collection.review(0.5)
    assert [(each.number, each.arguments) for each in run.population.active] == [(1, {"g": 10.0})]
    run.collection.review(0.9)
    assert [(each.number, each.arguments) for each in run.population.active] == [(1, {"g": 10.0}), (3, {"g": 18.0})]
    run.population.changed = lambda: pytest.fail("it has changed")
    run.collection.review(0.9)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return [{'h': progress}]", "returned variants that can't be played; no table of environment.variants has"),
        ("return [{'g': 'x' if 0 < progress < 1 else 1.0}]", "returned variants that can't be played; the argument g"),
        ("return [{'g': 1.0}, 2.0]", r"return 3 numbers, one for each variant, or the tables of the variants to play"),
        ("return []", r"returned 0 weights; return 3 numbers, one for each variant, or the tables"),
    ],
)
def test_what_can_not_be_played_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, reason: str
) -> None:
    with pytest.raises((TrainingFailed, ConfigurationError), match=rf"own\.py.*{reason}[^\n]*$"):
        Run(tmp_path, written(tmp_path, body), monkeypatch).collection.review(0.5)
    assert not (tmp_path / "variants.json").exists()
