"""Tests the session record, which has typed fields and two copies in a file."""

from pathlib import Path

import numpy as np
import pytest

from penstock.errors import DamagedFile
from penstock.replay.store.layout import RECORDS_BYTES, RECORDS_FILE, SESSION, session_copies
from penstock.replay.store.records import KeptTwice, SessionRecord, make_record, read_identity, session_of
from tests.support.segments.segments import make_store

FIELDS = [name for name in SESSION.names or () if name not in ("checksum", "sequence")]


def new_records() -> np.ndarray:
    records = np.zeros(RECORDS_BYTES, np.uint8)
    make_record(session_copies(records))
    return records


def test_every_field_of_the_layout_is_an_attribute() -> None:
    assert list(SessionRecord.__annotations__) == FIELDS


def test_saved_values_are_read_again() -> None:
    records = new_records()
    session = SessionRecord(KeptTwice(session_copies(records)))
    for number, name in enumerate(FIELDS):
        assert getattr(session, name) == 0
        setattr(session, name, 2**62 + number)
    assert session_of(records).session == 0
    session.save()
    again = session_of(records)
    assert [getattr(again, name) for name in FIELDS] == [2**62 + number for number in range(len(FIELDS))]
    for number, name in enumerate(FIELDS):
        assert (session_copies(records)[name] == 2**62 + number).all()


def test_a_session_identifier_uses_all_64_bits() -> None:
    records = new_records()
    session = SessionRecord(KeptTwice(session_copies(records)))
    session.session = 2**64 - 1
    session.save()
    assert session_of(records).session == 2**64 - 1


@pytest.mark.parametrize("copy", [0, 1])
def test_one_intact_copy_suffices(copy: int) -> None:
    store = make_store(5)
    store.session.late = 3
    store.session.save()
    session_copies(store.records)["late"][copy] ^= np.uint64(1)
    assert session_of(store.records).late == 3
    session_copies(store.records)["late"][1 - copy] ^= np.uint64(1)
    with pytest.raises(DamagedFile):
        session_of(store.records)


def test_a_store_is_used_once_it_has_a_learner_or_a_segment() -> None:
    store = make_store(5)
    assert not store.session.used
    session = store.session
    session.inserted = 1
    assert session.used
    session.inserted, session.session = 0, 7
    assert session.used


def test_the_identity_of_a_store_is_read_from_its_folder(tmp_path: Path) -> None:
    store = make_store(4, tmp_path)
    file = tmp_path / RECORDS_FILE
    assert read_identity(tmp_path) == store.session.identity > 0
    file.write_bytes(file.read_bytes()[:-1])
    assert read_identity(tmp_path) == 0
    file.unlink()
    assert read_identity(tmp_path) == 0
