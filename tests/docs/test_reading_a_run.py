"""docs/reading-a-run.md has every field of a run's files, and the numbers of a batch with the defaults."""

import dataclasses
import re

import batch_picture
import pytest

from penstock.config import Config
from penstock.learning.durable.records import Record
from penstock.runs.summary import Summary
from penstock.types.evaluation import EvaluationSummary
from penstock.types.statistics import MeanTimes
from penstock.types.status import RunStatus
from tests.docs.pages import ROOT
from tests.support.segments.statistics import TRAINING

PAGE = (ROOT / "docs" / "reading-a-run.md").read_text()
TRAINED = Record.of_training(RunStatus(), TRAINING, MeanTimes(), 1.0, ended_return=None)


def documented(heading: str) -> set[str]:
    """Returns the names in the first column of the table below a heading."""
    section = re.split(r"^#+ ", PAGE.split(f"# {heading}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize(
    ("heading", "fields"),
    [
        ("Training", {"env_steps", *TRAINED.values}),
        (
            "Evaluations",
            {"training_s", *(each.name for each in dataclasses.fields(EvaluationSummary))}
            - {"variants", "info_metrics"},
        ),
        ("summary.json", {each.name for each in dataclasses.fields(Summary)}),
    ],
)
def test_every_field_is_documented(heading: str, fields: set[str]) -> None:
    assert documented(heading) == fields


def test_the_picture_is_that_of_the_defaults() -> None:
    assert batch_picture.PICTURE.read_text() == batch_picture.picture(), "run `make docs`"


def test_the_table_of_units_has_the_numbers_of_the_defaults() -> None:
    config = Config()
    length, window, segments = config.actor.unroll_length, config.actor.environments, config.sampling.batch_segments
    fresh, updates = config.sampling.fresh_segments, config.ppo.epochs * config.ppo.minibatches
    for text in (
        f"| segment | {length} steps |",
        f"| window | {window} segments, {window * length} steps |",
        f"| batch | {segments} segments, {segments * length:,} steps | {fresh} fresh segments and {segments - fresh}",
        f"| update | {updates} per batch, or fewer |",
    ):
        assert text in PAGE
