"""Short form of `make stress-soak`: some seconds of a run whose actors come and go, and the judgement of growth."""

from pathlib import Path

import pytest

from stress.soak import MOST, Sample, Soaked, beyond, soak

pytestmark = pytest.mark.nightly


def test_a_run_whose_actors_come_and_go_keeps_its_services_and_leaves_nothing(tmp_path: Path) -> None:
    soaked = soak(tmp_path, minutes=0.2, every=0.15, seed=0, show=print)
    assert soaked.faults == []
    assert soaked.killed >= 1 and soaked.joined >= 2
    of_services = {"launcher", "replay-0", "replay-1", "learner", "evaluator"}
    assert set(soaked.samples[-1].values["memory, MB"]) == of_services
    assert {"learner", "replay"} <= set(soaked.samples[-1].values["series"])


def soaked_with(what: str, values: list[float]) -> Soaked:
    return Soaked([Sample(float(minute), {what: {"learner": value}}) for minute, value in enumerate(values)])


@pytest.mark.parametrize("what", MOST)
def test_steady_growth_is_found_and_a_warm_up_is_not(what: str) -> None:
    most = MOST[what]
    warming = [0.0, 50.0 * most, *28 * [100.0 * most]]
    assert beyond(soaked_with(what, warming).growth()) == []
    growing = [100.0 + 1.2 * most * minute for minute in range(30)]
    (line,) = beyond(soaked_with(what, growing).growth())
    assert line.startswith(f"learner: {what} grew by ")


def test_growth_per_minute_is_the_slope() -> None:
    growth = soaked_with("journal, kB a minute", [48.0 * minute for minute in range(40)]).growth()
    assert growth["journal, kB a minute"]["learner"] == pytest.approx(48.0, rel=0.05)
