"""The mark of the last version used by any process, despite kills, truncated files and flipped bits."""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.learning.durable.versions import RESERVED_AHEAD, VersionMark
from penstock.machine.files import write_json
from penstock.types.run import LARGEST_VERSION_JUMP


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "versions.json"


def use(path: Path, *versions: int, boot: str = "one") -> None:
    """Runs a process that uses these versions and is killed."""
    mark = VersionMark(path, boot=boot)
    for version in versions:
        mark.use(version)
    mark.close()


def end_at(path: Path, version: int) -> None:
    """Runs a process that ends cleanly at a version."""
    mark = VersionMark(path, boot="one")
    mark.use(version)
    mark.settle()
    mark.close()


def first(path: Path, checkpoint: int | None = None, boot: str = "one") -> int:
    return VersionMark(path, checkpoint, boot=boot).first


def first_and_notices(path: Path, checkpoint: int | None = None) -> tuple[int, list[str]]:
    """Returns the first version and the notices to the user."""
    lines: list[str] = []
    return VersionMark(path, checkpoint, notice=lines.append, boot="one").first, lines


def test_a_new_run_begins_at_version_0(path: Path) -> None:
    assert first_and_notices(path) == (0, [])
    assert not path.exists()


@pytest.mark.parametrize("last", [0, 1, 2, 99, 100, 101, 102, 350])
def test_a_kill_skips_at_most_one_version(path: Path, last: int) -> None:
    use(path, *range(last + 1))
    assert first(path) == first(path, 0 if last else None) == last + 1


def test_a_real_kill_loses_no_version(path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from penstock.learning.durable.versions import VersionMark\n"
        f"mark = VersionMark(Path({str(path)!r}))\n"
        "for version in range(10**9):\n    mark.use(version)\n    print(version, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in itertools.islice(process.stdout, 250):
            last = int(line)
        os.kill(process.pid, signal.SIGKILL)
        last = max([last, *(int(line) for line in process.stdout if line.endswith("\n"))])
    # The process may have recorded one version that it did not print.
    assert VersionMark(path).first in (last + 1, last + 2)


def test_a_run_resumed_with_the_last_parameters_continues_at_their_version(path: Path) -> None:
    end_at(path, 50)
    assert first(path, 50) == first(path, 50, boot="another") == 50
    use(path, 50, 51)
    assert first(path, 50) == 52


def test_the_version_of_the_checkpoint_is_reused_if_it_was_the_last_one_used(path: Path) -> None:
    use(path, *range(8))
    assert (first(path, 7), first(path, 6)) == (7, 8)


def test_after_a_reboot_the_run_continues_above_all_reserved_versions(path: Path) -> None:
    use(path, *range(8))
    assert first(path, boot="another") == RESERVED_AHEAD + 1
    # Without a boot id, the page cache is not trusted.
    assert first(path, boot="") == RESERVED_AHEAD + 1


def test_a_process_without_a_boot_id_does_not_trust_the_page_cache(path: Path) -> None:
    use(path, 0, 1, boot="")
    assert first(path, boot="") == RESERVED_AHEAD + 1


@pytest.mark.parametrize("last", [1, 2])
def test_a_new_process_overwrites_the_older_line_first(path: Path, last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use(path, *range(last + 1))
    before, write, places = path.read_bytes(), os.pwrite, list[int]()

    def recorded(file: int, data: bytes, place: int) -> int:
        places.append(place)
        return write(file, data, place)

    monkeypatch.setattr(os, "pwrite", recorded)
    use(path, last + 1)
    half = len(before) // 2
    used = [json.loads(before[start : start + half])["used"] for start in (0, half)]
    # A power cut in this write leaves the line with the larger version.
    assert places[0] == half * used.index(min(used))


def test_a_reservation_is_on_disk_before_a_version_above_it_is_used(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[bytes] = []
    force = os.fdatasync

    def force_and_record(file: int) -> None:
        force(file)
        forced.append(path.read_bytes())

    monkeypatch.setattr(os, "fdatasync", force_and_record)
    mark, forced_counts = VersionMark(path, boot="one"), []
    for version in range(3 * RESERVED_AHEAD):
        mark.use(version)
        on_disk = path.with_name("on-disk")
        on_disk.write_bytes(forced[-1])
        assert first(on_disk, boot="another") > version
        forced_counts.append(len(forced))
    assert forced_counts[RESERVED_AHEAD : RESERVED_AHEAD + 2] == [1, 2] and forced_counts[-1] == 3
    mark.close()


def test_versions_never_repeat_over_kills_and_clean_ends(path: Path) -> None:
    random, used, checkpoint = np.random.default_rng(1), -1, None
    for _ in range(60):
        mark = VersionMark(path, checkpoint, boot="one")
        assert mark.first == (checkpoint if checkpoint == used and checkpoint is not None else used + 1)
        for version in range(mark.first, mark.first + int(random.integers(1, 150))):
            mark.use(version)
            used = version
            if random.random() < 0.05:
                checkpoint = version
        if random.random() < 0.3:
            checkpoint = used
            mark.settle()
        mark.close()


def test_every_flipped_bit_is_reported_and_repeats_no_version(path: Path) -> None:
    use(path, *range(230))
    sound = path.read_bytes()
    for bit in range(0, 8 * len(sound), 7):
        data = bytearray(sound)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        version, lines = first_and_notices(path, 200)
        assert len(lines) == 1, bit
        assert "damaged" in lines[0]
        assert str(path) in lines[0]
        assert 229 < version <= 229 + RESERVED_AHEAD + 1, bit


@pytest.mark.parametrize("left", [0, 1, 200, 512, 700, 1023])
def test_a_truncated_file_is_reported_and_repeats_no_version(path: Path, left: int) -> None:
    use(path, *range(230))
    path.write_bytes(path.read_bytes()[:left])
    version, lines = first_and_notices(path, 200)
    assert version == 200 + LARGEST_VERSION_JUMP + 1
    assert len(lines) == 1
    assert "damaged" in lines[0]


def test_a_completely_damaged_file_is_reported_without_a_checkpoint(path: Path) -> None:
    use(path, 0, 1)
    path.write_bytes(bytes(len(path.read_bytes())))
    version, lines = first_and_notices(path)
    assert version == LARGEST_VERSION_JUMP + 1
    assert len(lines) == 1


def test_a_missing_file_of_a_run_with_a_checkpoint_is_reported(path: Path) -> None:
    version, lines = first_and_notices(path, 107)
    assert version == 107 + LARGEST_VERSION_JUMP + 1
    assert "missing" in lines[0]


def test_a_mark_below_the_newest_checkpoint_is_not_used(path: Path) -> None:
    use(path, *range(10))
    version, lines = first_and_notices(path, 300)
    assert version == 300 + LARGEST_VERSION_JUMP + 1
    assert "ends at version 9" in lines[0]


def test_a_damaged_file_is_repaired_at_the_next_use(path: Path) -> None:
    use(path, *range(10))
    path.write_bytes(b"7")
    mark = VersionMark(path, 50, boot="one")
    mark.use(mark.first)
    mark.close()
    assert first_and_notices(path, 50) == (mark.first + 1, [])


def test_the_number_written_by_the_previous_release_is_read(path: Path) -> None:
    write_json(path, 107)
    assert (first_and_notices(path, 60), first_and_notices(path, 107)) == ((108, []), (107, []))
    use(path, 108)
    assert first(path, 60) == 109


def test_the_file_is_readable_json(path: Path) -> None:
    use(path, *range(4))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(line["used"] for line in lines) == [2, 3]
    assert {line["reserved"] for line in lines} == {RESERVED_AHEAD}


def test_a_failing_disk_is_reported_once_and_versions_are_recorded_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    mark = VersionMark(path, notice=lines.append, boot="one")
    mark.use(0)

    def refuse(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", refuse)
        mark.use(1)
        mark.use(2)
    assert len(lines) == 1
    assert "No space left" in lines[0]
    mark.use(3)
    mark.close()
    assert first(path) == 4
