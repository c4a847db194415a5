"""Curricula of users divide collection among variants, and mistakes in them are refused in one line."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.config import Config, SamplingConfig, build
from penstock.curricula import Variant
from penstock.errors import ConfigurationError, ForeignCode, TrainingFailed
from penstock.learning.run.collection import CollectionWeights
from penstock.learning.run.own_curriculum import OwnCurriculum

ARGUMENTS: list[dict[str, object]] = [{"g": 5.0}, {"g": 10.0}, {"g": 15.0}]


def written(folder: Path, body: str, file_name: str = "curriculum.py") -> str:
    """Returns the name of a function of variants and progress with this body."""
    file = folder / file_name
    file.write_text(f"def chosen(variants, progress):\n    {body}\n")
    return f"{file}:chosen"


def by_own(name: str) -> CollectionWeights:
    return CollectionWeights(SamplingConfig(collection=name), ARGUMENTS, None)


def test_the_function_gets_what_is_known_of_each_variant_and_the_progress(tmp_path: Path) -> None:
    body = "return [each.arguments['g'] + 10 * sum(each.returns) + 100 * len(each.errors) for each in variants]"
    curriculum = OwnCurriculum(written(tmp_path, body), ARGUMENTS)
    assert curriculum.choose(ARGUMENTS, [[1.0], [], [2.0, 3.0]], [[], [9.0], []], 0.5).weights == [15.0, 110.0, 65.0]
    progress = OwnCurriculum(written(tmp_path, "return [1, progress, 0]", "other.py"), ARGUMENTS)
    assert progress.choose(ARGUMENTS, [[]] * 3, [[]] * 3, 0.25).weights == [1.0, 0.25, 0.0]


def test_its_weights_have_mean_1_in_the_plan(tmp_path: Path) -> None:
    weights = by_own(written(tmp_path, "return [0, 1 - progress, 2 * progress]"))
    found = [weights.review(lambda: [[], [], []], 0.5) for _ in range(4)]
    assert found == [None, None, None, (0.0, 1.0, 2.0)]


def test_its_list_of_variants_is_its_own(tmp_path: Path) -> None:
    body = "variants[0].arguments.clear(); return [1] * len(variants)"
    OwnCurriculum(written(tmp_path, body), ARGUMENTS)
    assert ARGUMENTS[0] == {"g": 5.0}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return None", "returned None; return 3 numbers, one for each variant"),
        ("return [1.0]", "returned 1 weights; return 3 numbers"),
        ("return ['a', 1, 1]", "returned .'a', 1, 1.; return 3 numbers"),
        ("return [0, 0, 0]", "returned the weights 0, 0, 0; return finite numbers, 0 or above, of which one"),
        ("return [-1, 2, 2]", "returned the weights -1, 2, 2; return finite numbers"),
        ("return [float('nan'), 2, 2]", "returned the weights nan, 2, 2; return finite numbers"),
        ("return [sum(each.returns) / len(each.returns) for each in variants]", "failed: ZeroDivisionError: .*line 2"),
    ],
)
def test_a_useless_result_is_refused_before_training_with_the_line(tmp_path: Path, body: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^sampling.collection '.*curriculum.py:chosen'.* {reason}"):
        by_own(written(tmp_path, body))


def test_a_failure_during_training_ends_the_run_with_the_line(tmp_path: Path) -> None:
    weights = by_own(written(tmp_path, "return [1 / abs(0.5 - progress)] * 3"))
    for _ in range(3):
        weights.review(lambda: [[], [], []], 0.5)
    with pytest.raises(TrainingFailed, match=r"failed: ZeroDivisionError: .*\(.*curriculum.py, line 2\); correct it"):
        weights.review(lambda: [[], [], []], 0.5)


def varied(collection: object) -> dict[str, object]:
    return {
        "environment": {"id": "Pendulum-v1", "variants": [{"g": 8.0}, {"g": 12.0}]},
        "sampling": {"collection": collection},
    }


def equally(variants: Sequence[Variant], progress: float) -> list[float]:
    return [1.0] * len(variants)


def test_the_setting_takes_a_rule_a_name_or_a_function(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert build(varied("error")).sampling.curriculum is None
    assert build(varied("own.py:chosen")).sampling.collection == f"{tmp_path}/own.py:chosen"
    assert build(varied(equally)).sampling.curriculum == f"{__name__}:equally"
    with pytest.raises(
        ConfigurationError, match=r"got 'eror'\. Known: equal, return, error, learnability\. did you mean error\?"
    ):
        build(varied("eror"))


def test_a_file_of_settings_may_not_choose_it_alone(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(build(varied("own.py:chosen")).to_toml())
    with pytest.raises(ForeignCode, match=r"sampling\.collection .*own.py:chosen"):
        Config.load(file).refuse_foreign_code()
