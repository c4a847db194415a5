"""Short form of `make stress-torture`: kills a real service over a small store, and checks every guarantee."""

from pathlib import Path

import pytest

from stress.torture_run import Options, Torture

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("distant", [False, True], ids=["same_host", "distant"])
def test_repeated_kills_of_the_service_violate_no_guarantee(tmp_path: Path, distant: bool) -> None:
    options = Options(
        14.0,
        capacity_bytes=24 * 2**20,
        seed=3,
        fill_s=10.0,
        alive_s=(0.5, 2.5),
        # Draws depend on the scheduling of threads: at 0.001, one run in 500 would fail by chance.
        least_p=1e-6,
        least_restarts=2,
        least_commits=11,
        distant=distant,
    )
    report = Torture(tmp_path, options, print).play()
    assert report.violations == []
    # The kills hit the service under load.
    assert len(report.ready_s) >= 2
    assert report.found[-1].segments > 100
    assert report.events["commits"] > 10
    assert not distant or report.events["connections cut"] > 1
