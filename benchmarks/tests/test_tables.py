"""The generated tables of comparisons."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import charts, insertion_tables
from benchmarks.tables import (
    IMAGES,
    RESULTS,
    ROOT,
    claims,
    data_path,
    distant_actors,
    goals,
    origin,
    pages,
    place_of,
    with_parts,
)
from tests.support.results.result_files import has_history, read_index


@pytest.fixture
def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / "loop.json").read_text())
    return found


@pytest.mark.parametrize("page", pages())
def test_the_generated_parts_of_pages_are_current(page: str) -> None:
    if page == "README.md" and not has_history():
        pytest.skip("README.md quotes only results whose code has not changed, which needs the history of a checkout")
    text = (ROOT / page).read_text()
    assert with_parts(page, text) == text, "run `python -m benchmarks.tables`"


@pytest.mark.parametrize("name", charts.CHARTS)
def test_the_charts_are_current(name: str) -> None:
    picture = charts.pictures(read_index())[name]
    assert (IMAGES / name).read_text() == picture, "run `python -m benchmarks.tables`"


def test_the_chart_of_pace_shows_the_work_with_the_smallest_lead() -> None:
    cases = [pace("penstock", 9_000.0, 1.0), pace("sb3", 1_000.0, 20.0), pace("rllib", 500.0, 20.0)]
    nearer = [pace("penstock", 8_000.0, 1.0), pace("sb3", 1_000.0, 20.0), pace("rllib", 500.0, 20.0)]
    document = {"like_for_like": [*cases, *({**case, "minibatch": 1024} for case in nearer)]}
    assert "minibatches of 1,024: Penstock 8k steps/s" in charts.pace(document).text


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"docs/gpu\.md has no marks for 'errors on a GPU'"):
        with_parts("docs/gpu.md", "# GPU")


def test_only_a_listed_result_is_adopted_in_its_place() -> None:
    assert place_of(Path("build/bench/loop.json")) == RESULTS / "loop.json"
    assert place_of(Path("build/bench/gpu/learner.json")) == RESULTS / "gpu" / "learner.json"
    with pytest.raises(SystemExit, match=r"index\.toml does not list new\.json"):
        place_of(Path("build/bench/new.json"))


def pace(system: str, env_steps_per_s: float, cpu_s: float, rounds: int = 5) -> dict[str, Any]:
    return {
        "system": system,
        "env_id": "CartPole-v1",
        "minibatch": 256,
        "env_steps_per_s": env_steps_per_s,
        "uses_per_s": 2 * env_steps_per_s,
        "cpu_s_per_million_steps": cpu_s,
        "rounds": rounds,
        "failed": 0,
    }


def test_the_claim_is_the_range_over_all_peers_and_needs_five_rounds() -> None:
    cases = [pace("penstock", 1_000.0, 10.0), pace("sb3", 500.0, 20.0), pace("rllib", 100.0, 100.0)]
    quiet: list[dict[str, Any]] = [{"load": 1.5}]
    claim = claims({"like_for_like": cases, "runs": quiet})
    assert "2.0 to 10.0 times" in claim
    assert "0.10 to 0.50 of" in claim
    assert claims({"like_for_like": [*cases[:2], pace("rllib", 100.0, 100.0, rounds=4)], "runs": quiet}) == ""
    assert claims({"like_for_like": cases, "runs": [*quiet, {"load": 9.0}]}) == ""


def test_goals_in_seconds_are_undecided_on_a_busy_machine() -> None:
    cases = [pace("penstock", 1_000.0, 10.0), pace("sb3", 100.0, 20.0)]
    tables: dict[str, Any] = {"like_for_like": cases, "pipeline_bound": [], "as_people_run": [], "data_path": []}
    for load, first in ((1.0, "10.00"), (9.0, "10.00 (undecided)"), (None, "10.00 (undecided)")):
        rows = goals({**tables, "runs": [{"load": load}]}).splitlines()[-2:]
        measured = (f"CartPole-v1 {each} (256)" for each in (first, "**0.50**"))
        assert [row.split("|")[-2].strip() for row in rows] == list(measured)


def test_a_goal_is_not_measured_if_no_peer_reached_the_threshold() -> None:
    def seconds(system: str, wall_s: float | None) -> dict[str, Any]:
        return {"system": system, "env_id": "CartPole-v1", "wall_s": wall_s, "observed_s": 30.0, "rounds": 1}

    def row(*peers: float | None) -> str:
        cases = [seconds("penstock", 12.0), *(seconds(f"peer {number}", each) for number, each in enumerate(peers))]
        tables: dict[str, Any] = {"like_for_like": [], "pipeline_bound": [], "as_people_run": cases, "data_path": []}
        return goals({**tables, "runs": [{"load": 1.0}]}).splitlines()[-1]

    assert row(None, None).endswith("| at most 0.7 | CartPole-v1 no peer reached the threshold |")
    # The one that was stopped after 30 s may have been the faster.
    assert row(None, 60.0).endswith("| at most 0.7 | CartPole-v1 0.40 |")
    assert row(15.0, None).endswith("| at most 0.7 | CartPole-v1 **0.80** |")


def test_runs_that_failed_and_the_load_of_the_machine_are_stated(document: dict[str, Any]) -> None:
    document["like_for_like"] = [{**pace("sb3", 1.0, 1.0, rounds=4), "failed": 1}]
    document["as_people_run"] = document["data_path"] = []
    document["runs"] = [{"load": 0.5}, {"load": 3.25}, {}]
    sentence = origin(document)
    assert "medians of 4 rounds like for like and of 0 seeds" in sentence
    assert "1 runs failed" in sentence
    assert "was 3.2" in sentence


def test_the_largest_activity_of_the_path_is_first() -> None:
    case = {
        "system": "penstock",
        "env_id": "CartPole-v1",
        "rounds": 1,
        "path_share": 0.125,
        "replay_path_cpu_s_per_million": 1.0,
        "threads_path_cpu_s_per_million": 2.0,
        "replay_cpu_s_per_million": 1.0,
    }
    assert data_path({"data_path": [case]}).splitlines()[-1] == "| CartPole-v1 | 12.5% | threads 2.00, replay 1.00 |"


def test_the_pace_of_distant_actors_is_shown_beside_what_the_link_permits() -> None:
    def rates(steps_per_s: float) -> dict[str, float]:
        return {
            "steps_per_s": steps_per_s,
            "batches_per_s": steps_per_s / 100.0,
            "up_mbit_per_s": 1.0,
            "down_mbit_per_s": steps_per_s / 100.0,
        }

    def case(degree: int, near: float, distant: float) -> dict[str, Any]:
        return {"unroll_length": 8, "degree": degree, "near": rates(near), "distant": rates(distant)}

    document = {
        "provenance": {"machine": "m", "commit": "c", "date": "2026-11-26"},
        "load": 1.0,
        "rounds": 1,
        "seconds": 8.0,
        "round_trip_s": 0.1,
        "mbit_per_s": 50.0,
        "cases": [case(0, 1_000.0, 400.0), case(1, 1_250.0, 900.0), case(4, 1_250.0, 1_200.0)],
    }
    # A batch takes 100 ms near, and 100 ms of delay and 20 ms of transmission more at a distance.
    assert [row.split(" | ")[3:5] for row in distant_actors(document).splitlines()[2:5]] == [
        ["0.40", "0.45"],
        ["0.72", "0.73"],
        ["0.96", "1.00"],
    ]


@pytest.mark.parametrize(
    ("way", "ratio", "goal"),
    [("tcp", 1.6, "1.5, met"), ("tcp", 1.4, "1.5, **missed**"), ("tls", 1.1, "1.05, met"), ("grpc", 0.5, "")],
)
def test_insertion_is_compared_with_the_goal_of_its_way(way: str, ratio: float, goal: str) -> None:
    measured = {"per_s": 1.0, "service_us": 20.0, "writers_us": 30.0, "median_ms": 1.0, "slow_ms": 4.0}
    row = {"segment": "vector", "writers": 4, "window": 8, "way": way, "ratio": ratio, "penstock": measured}
    shown = insertion_tables.insertion({"rows": [{**row, "reverb": {**measured, "writers_us": 80.0}}]})
    assert (
        shown.splitlines()[-1] == f"| `vector` | 4 | 8 | {way} | {ratio:.2f} | {goal} | 50, 100 | 1.0, 4.0; 1.0, 4.0 |"
    )
