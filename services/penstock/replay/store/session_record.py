"""Session record of a store: state of the learner's session, and counters since the store was created.

`ring_store` and the parts of `replay.buffer` change it under the buffer's lock. Other processes read copies of it.
"""

import operator
import struct

import numpy as np
from numpy.typing import NDArray

from penstock.replay.store.kept_twice import COUNTED_BYTES, KeptTwice
from penstock.replay.store.layout import SESSION, session_copies

_FIELDS = SESSION.names[2:] if SESSION.names else ()
_VALUES = struct.Struct("<" + "".join("q" if SESSION[name].kind == "i" else "Q" for name in _FIELDS))


class SessionRecord:
    """Session record as numbers. Changes reach the file with `save`.

    Attributes:
        session: Identifier of the learner's session; 0 before the first.
        next_batch: Number of the first uncommitted batch.
        version: Version of the policy after the last commit, or at the start of the session; 0 before the first.
        next_key: Key of the next segment.
        inserted: Number of segments stored since the store was created.
        late: Number of segments that arrived too late to be fresh, since the store was created.
        identity: Random number that distinguishes the store from others.
        next_lease: Number of the first batch that was never leased. It is one too low after a kill in a lease.
    """

    session: int
    next_batch: int
    version: int
    next_key: int
    inserted: int
    late: int
    identity: int
    next_lease: int

    def __init__(self, kept: KeptTwice) -> None:
        self._kept = kept
        for name, value in zip(_FIELDS, _VALUES.unpack_from(kept.bytes, COUNTED_BYTES), strict=True):
            setattr(self, name, value)

    @property
    def used(self) -> bool:
        """Whether the store ever had a learner or a segment."""
        return bool(self.session or self.inserted)

    def save(self) -> None:
        """Writes the record. After a kill during the write, the former record or this one is read."""
        _VALUES.pack_into(self._kept.bytes, COUNTED_BYTES, *_values_of(self))
        self._kept.save()


_values_of = operator.attrgetter(*_FIELDS)


def session_of(records: NDArray[np.uint8]) -> SessionRecord:
    """Returns a copy of the session record in <uint8>[RECORDS_BYTES].

    Raises:
        DamagedFile: Both copies of the record are damaged.
    """
    return SessionRecord(KeptTwice(session_copies(records)))
