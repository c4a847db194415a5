"""The version of a store, set on purpose: after a mistake, or in a run whose folder was restored from an older copy.

A learner can't do so, because a store's version never falls by itself.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.errors import ConfigurationError
from penstock.replay.store.ages import Ages
from penstock.replay.store.ring_store import RingStore
from penstock.replay.store.store_files import description_in, held


@dataclass(frozen=True, slots=True)
class ResetStore:
    """Effect of a reset: the run of the store, its version before, and the segments kept and removed."""

    run: int
    former_version: int
    kept: int
    removed: int


def reset_version(folder: Path, version: int) -> ResetStore:
    """Sets the version of the store in a folder, from which a learner of its run may begin.

    Segments of later versions are removed, because their versions will belong to other policies. Leases end with the
    next plan. The change is durable when this returns, and a kill leaves the former version or the new one.

    Raises:
        ConfigurationError: There is no store in the folder, or a replay service uses it.
        DamagedFile: A file of the store is missing or damaged.
    """
    with held(folder, alone=True):
        description = description_in(folder)
        if description is None:
            raise ConfigurationError(
                f"there is no store with segments in {folder}; name the folder of a replay service"
            )
        store = RingStore(folder, description.capacity_bytes)
        session, headers = store.session, store.headers
        former = session.version
        later = np.flatnonzero((headers["key"] != 0) & (headers["version"] > version))
        store.remove(later)
        # Numbers that are passed over make no segment older, as at a takeover.
        Ages(store.records, former).skip(former, version)
        session.session, session.version = 0, version
        session.next_batch = session.next_lease = version
        session.save()
        # Gaps above the new version end there.
        Ages(store.records, version)
        store.flush()
        return ResetStore(store.owner.run, former, int(np.count_nonzero(headers["key"])), int(later.size))
