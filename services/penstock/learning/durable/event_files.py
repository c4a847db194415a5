"""Event files in the folder of a run, which TensorBoard reads.

A file is a sequence of TFRecords, each an `Event` of TensorBoard's event.proto with all numbers of one record. A
session begins a new file with `SessionLog.START`, at which readers drop what an earlier session wrote after the
checkpoint that this one resumes from. The journal owns the records: those that a killed session left only there are
added first.
"""

import functools
import itertools
import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.learning.durable.journal import Waiting, append
from penstock.learning.durable.records import Record
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.machine.files import make_folder
from penstock.machine.system_errors import in_words
from penstock.runs.metrics import records_of, tag_of

_ALL_UP_TO = 4096
"""Records of a session that are all written. Twice as many later ones add half as many: of 1, 2, 4, 8, ... one."""

_HISTOGRAM_EVERY = 16
"""Records of training from histogram to histogram, each of which takes as long as twenty numbers."""

_BINS = 30
"""Bins of a histogram."""

_HYPERPARAMETERS = "_hparams_/session_start_info"
_POLYNOMIAL = 0x82F63B78
"""CRC-32C (Castagnoli), bits reversed; RFC 3720, appendix B.4."""


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


class EventFiles:
    """Sink of records that writes event files, later if they can't be written now. Used by one thread."""

    def __init__(
        self,
        folder: Path,
        journal: Path,
        *,
        writes: RetriedWrites,
        notice: Callable[[str], None],
        hyperparameters: Mapping[str, str | float | bool],
    ) -> None:
        """Names the folder of the event files, and the journal with the same records. `notice` notifies the user."""
        self._folder, self._journal, self._writes, self._notice = folder, journal, writes, notice
        self._hyperparameters = hyperparameters
        # TensorBoard reads the files in the order of their names.
        self._path = folder / f"events.out.tfevents.{time.time_ns() // 1000:019d}.{socket.gethostname()}.{os.getpid()}"
        self._waiting = Waiting(self._path, notice)
        self._head = b""
        self._written = self._count = 0

    def resume(self, env_steps: int) -> None:
        """Implements `RecordSink`."""
        beginning = _event(env_steps + 1, session_log=_number(1, 1))
        settings = _event(0, summary=_hyperparameters_of(self._hyperparameters))
        self._head = b"".join(map(_framed, [_event(0, file_version=b"brain.Event:2"), beginning, settings]))
        for line in self._missing(env_steps):
            values = {name: value for name, value in line.items() if isinstance(value, int | float)}
            del values["env_steps"]
            self._waiting.append(_framed(_event(line["env_steps"], summary=_scalars(line["kind"], values))))
        self._flush()

    def write(self, record: Record) -> None:
        """Implements `RecordSink`."""
        training = record.kind == "training"
        if training and self._count % (1 << (self._count // _ALL_UP_TO).bit_length()):
            self._count += 1
            return
        summary = _scalars(record.kind, record.values)
        if training and self._count % _HISTOGRAM_EVERY == 0:
            for name, values in record.distributions.items():
                summary += _histogram(f"histogram/{name}", values)
        self._count += training
        self._waiting.append(_framed(_event(record.env_steps, summary=summary)))
        self._flush()

    def _missing(self, env_steps: int) -> Iterator[dict[str, Any]]:
        """Yields the journal's last records up to this step that no event file contains."""
        if env_steps == 0:
            return
        last = known = 0
        try:
            # A session that was killed early left no record, or only later ones, which readers drop.
            for path in sorted(self._folder.iterdir(), reverse=True):
                steps = Counter(step for step in _steps_of(path.read_bytes()) if step <= env_steps)
                if steps:
                    last = max(steps)
                    known = steps[last]
                    break
            records = records_of(self._journal)
        except OSError as error:
            self._notice(f"TensorBoard may lack some records: {in_words(error, self._folder)}")
            return
        for record in records:
            if last <= record["env_steps"] <= env_steps:
                known -= record["env_steps"] == last
                if record["env_steps"] > last or known < 0:
                    yield record

    def _flush(self) -> None:
        self._writes.write("event files", self._write)

    def _write(self) -> None:
        """Writes the waiting events. The next write overwrites one that failed halfway. Raises `OSError`."""
        make_folder(self._folder)
        head = b"" if self._written else self._head
        self._written = append(self._path, head + self._waiting.data(), at=self._written)
        self._waiting.clear()


def _scalars(kind: str, values: Mapping[str, float | None]) -> bytes:
    """Returns the fields of a `Summary` with the known numbers of a record."""
    return b"".join(
        _field(1, _tag(kind, name) + _float32(2, value)) for name, value in values.items() if value is not None
    )


@functools.cache
def _tag(kind: str, name: str) -> bytes:
    """Returns the field of a value with its tag. Every record has the same ones."""
    return _field(1, tag_of(kind, name).encode())


def _histogram(tag: str, values: NDArray[Any]) -> bytes:
    """Returns the field of a `Summary` with a `HistogramProto` of the finite values <number>[N]; empty without any."""
    finite = values[np.isfinite(values)].astype(np.float64)
    if not finite.size:
        return b""
    counts, limits = np.histogram(finite, _BINS)
    numbers = (finite.min(), finite.max(), float(finite.size), finite.sum(), (finite * finite).sum())
    histogram = b"".join(_float64(index, number) for index, number in enumerate(numbers, 1))
    # TensorBoard's first bin has no lower limit of its own.
    histogram += _field(6, limits.astype("<f8").tobytes())
    histogram += _field(7, np.concatenate([[0.0], counts]).astype("<f8").tobytes())
    return _field(1, _field(1, tag.encode()) + _field(5, histogram))


def _hyperparameters_of(values: Mapping[str, str | float | bool]) -> bytes:
    """Returns the field of a `Summary` by which the HParams page knows the settings (plugin_data.proto)."""
    started = b"".join(_field(1, _field(1, name.encode()) + _field(2, _value(each))) for name, each in values.items())
    content = _number(1, 0) + _field(3, started + _float64(5, time.time()))
    metadata = _field(1, _field(1, b"hparams") + _field(2, content))
    # The reader drops a value without a tensor: DT_FLOAT, shape (), value 0.
    tensor = _number(1, 1) + _field(2, b"") + _field(5, struct.pack("<f", 0.0))
    return _field(1, _field(1, _HYPERPARAMETERS.encode()) + _field(8, tensor) + _field(9, metadata))


def _value(value: str | float | bool) -> bytes:
    """Returns a `google.protobuf.Value`."""
    if isinstance(value, bool):
        return _number(4, int(value))
    return _field(3, value.encode()) if isinstance(value, str) else _float64(2, float(value))


def _event(step: int, *, file_version: bytes = b"", summary: bytes = b"", session_log: bytes = b"") -> bytes:
    head = _float64(1, time.time()) + _number(2, step)
    parts = ((3, file_version), (5, summary), (7, session_log))
    return head + b"".join(_field(number, part) for number, part in parts if part)


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return bytes([number << 3]) + _varint(value)


def _float64(number: int, value: float) -> bytes:
    return bytes([number << 3 | 1]) + struct.pack("<d", value)


def _float32(number: int, value: float) -> bytes:
    return bytes([number << 3 | 5]) + np.float32(value).tobytes()


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _framed(data: bytes) -> bytes:
    """Returns a TFRecord: length, data, and a masked CRC-32C of each."""
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _masked_crc(data: bytes) -> bytes:
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _steps_of(data: bytes) -> Iterable[int]:
    """Yields the steps of the events with numbers in a file, up to the first incomplete one."""
    position = 0
    while position + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, position)
        event = data[position + 12 : position + 12 + length]
        position += length + 16
        if position > len(data):
            return
        # `_event` writes the wall time in 9 bytes, then the step.
        step, index = 0, 10
        for shift in itertools.count(step=7):
            step |= (event[index] & 127) << shift
            index += 1
            if event[index - 1] < 128:
                break
        if step and event[index : index + 1] == bytes([5 << 3 | 2]):
            yield step
