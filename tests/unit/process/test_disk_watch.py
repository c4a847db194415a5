import shutil
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from penstock.process.disk_watch import DiskWatch
from tests.support.machine.timing import wait_for


def test_the_space_of_a_watched_folder_is_exported(tmp_path: Path) -> None:
    seen: list[bool] = []
    watch = DiskWatch(tmp_path, seen.append)
    wait_for(lambda: seen, "the first look")
    watch.close()
    size, free = (
        REGISTRY.get_sample_value(f"penstock_storage_{name}_bytes", {"folder": str(tmp_path)})
        for name in ("size", "free")
    )
    disk = shutil.disk_usage(tmp_path)
    assert size == disk.total
    # Others write to the disk meanwhile.
    assert free == pytest.approx(disk.free, abs=0.1 * disk.total)
