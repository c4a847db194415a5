"""Claims of trials: taken by one process, and taken over from one that has died, here or on another host."""

import json
import subprocess
import sys
from pathlib import Path

from penstock.comparing.claims import LEASE_S, Claims

CLAIM_AND_EXIT = (
    "import sys; from pathlib import Path; from penstock.comparing.claims import Claims;"
    "Claims().take(Path(sys.argv[1]))"
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def on_another_host(folder: Path) -> None:
    claim = json.loads((folder / "claim.json").read_text())
    (folder / "claim.json").write_text(json.dumps({**claim, "machine": "another", "pid": 1}))


def test_a_trial_has_one_process_until_it_is_released(tmp_path: Path) -> None:
    first, second = Claims(), Claims()
    assert first.take(tmp_path / "0")
    assert not first.take(tmp_path / "0")
    assert not second.take(tmp_path / "0")
    assert second.take(tmp_path / "1")
    second.release(tmp_path / "0")
    assert not second.take(tmp_path / "0")
    first.release(tmp_path / "0")
    assert second.take(tmp_path / "0")


def test_the_trial_of_a_process_that_died_on_this_machine_is_free_at_once(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", CLAIM_AND_EXIT, str(tmp_path)], check=True)
    assert (tmp_path / "claim.json").exists()
    assert Claims().take(tmp_path)


def test_the_trial_of_another_host_is_free_once_its_claim_is_not_renewed(tmp_path: Path) -> None:
    clock = Clock()
    claims = Claims(clock)
    Claims().take(tmp_path)
    on_another_host(tmp_path)
    assert not claims.take(tmp_path)
    clock.now_s = LEASE_S - 1.0
    # A renewal by the other host.
    claim = json.loads((tmp_path / "claim.json").read_text())
    (tmp_path / "claim.json").write_text(json.dumps({**claim, "beat": 2}))
    assert not claims.take(tmp_path)
    clock.now_s += LEASE_S
    assert not claims.take(tmp_path)
    clock.now_s += 1.0
    assert claims.take(tmp_path)


def test_claims_are_renewed_and_a_lost_one_is_told(tmp_path: Path) -> None:
    clock = Clock()
    claims = Claims(clock)
    claims.take(tmp_path / "0")
    claims.take(tmp_path / "1")
    before = (tmp_path / "0" / "claim.json").read_text()
    assert claims.renew() == []
    assert (tmp_path / "0" / "claim.json").read_text() == before
    clock.now_s = LEASE_S / 2
    assert claims.renew() == []
    assert (tmp_path / "0" / "claim.json").read_text() != before
    (tmp_path / "1" / "claim.json").unlink()
    assert Claims().take(tmp_path / "1")
    clock.now_s = LEASE_S
    assert claims.renew() == [tmp_path / "1"]
    # The claim of the other process is not touched.
    claims.release(tmp_path / "1")
    assert (tmp_path / "1" / "claim.json").exists()
