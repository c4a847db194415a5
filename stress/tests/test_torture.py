"""Short form of `make stress-torture`: kills a real service over a small store, and checks every promise."""

from pathlib import Path

from stress.torture_run import Options, Torture


def test_no_promise_is_broken_however_often_the_service_is_killed(tmp_path: Path) -> None:
    options = Options(
        14.0,
        capacity_bytes=24 * 2**20,
        seed=3,
        fill_s=10.0,
        alive_s=(0.5, 2.5),
        # What is drawn depends on how threads are scheduled: one run in 500 would be called out at 0.001.
        least_p=1e-6,
        least_restarts=2,
        least_commits=11,
    )
    report = Torture(tmp_path, options, print).play()
    assert report.violations == []
    # It was a torture indeed.
    assert len(report.ready_s) >= 2
    assert report.found[-1].segments > 100
    assert report.events["commits"] > 10
