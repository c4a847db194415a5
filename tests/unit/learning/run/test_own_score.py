"""Scores of users choose the best checkpoint, and mistakes in them are refused in one line."""

from pathlib import Path

import pytest

from penstock.config import Config, build
from penstock.errors import ConfigurationError, ForeignCode, TrainingFailed
from penstock.learning.run.own_score import OwnScore
from penstock.types.evaluation import EvaluationSummary, InfoMetric, VariantReturns


def evaluation(*returns: float) -> EvaluationSummary:
    """Returns an evaluation of variants with these returns, whose successes are half of the episodes."""
    parts = tuple(VariantReturns(2, value, 0.0, number) for number, value in enumerate(returns))
    mean = sum(returns) / len(returns)
    return EvaluationSummary(3, 900, 4, mean, 0.5, parts, 0, (InfoMetric("success", 4, 0.5),))


def score(folder: Path, body: str) -> OwnScore:
    (folder / "own.py").write_text(f"def chosen(evaluation):\n    {body}\n")
    return OwnScore(f"{folder / 'own.py'}:chosen", 2, ("success",))


def test_it_sees_variants_and_infos(tmp_path: Path) -> None:
    body = "return min(each.return_mean for each in evaluation.variants) + 10 * evaluation.info_metrics[0].mean"
    assert score(tmp_path, body)(evaluation(4.0, 2.0)) == 7.0


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return None", "returned None; return a number"),
        ("return float('nan')", "returned nan; return a number"),
        ("return evaluation.returns", r"failed: AttributeError: .*own\.py, line 2"),
    ],
)
def test_a_useless_result_is_refused_before_training_with_the_line(tmp_path: Path, body: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^evaluation\.score '.*own\.py:chosen'.* {reason}"):
        score(tmp_path, body)


def test_a_failure_during_training_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailed, match=r"failed: ZeroDivisionError: .*own\.py, line 2"):
        score(tmp_path, "return 1 / (evaluation.version - 3)")(evaluation(1.0, 2.0))


def test_a_file_of_settings_may_not_choose_it_alone(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(build({"environment": {"id": "CartPole-v1"}, "evaluation": {"score": "own.py:chosen"}}).to_toml())
    with pytest.raises(ForeignCode, match=r"evaluation\.score .*own.py:chosen"):
        Config.load(file).refuse_foreign_code()
