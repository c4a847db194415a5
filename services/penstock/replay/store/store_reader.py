"""Reader for the columns of a store that another process on this host writes. A learner gets batches without a socket.

Rows may be overwritten while they are read. The writer zeroes a row's key first and writes the new key last. If a key
is unchanged after the copy, the copy is of one segment. `shows` must first prove that the reader maps the service's own
memory.
"""

import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError
from penstock.machine import compression
from penstock.machine.system_errors import in_words
from penstock.replay.store.description import read_schema
from penstock.replay.store.layout import SEGMENTS_FILE, Regions
from penstock.replay.store.records import read_identity
from penstock.replay.store.row_checks import in_order
from penstock.types.block import Columns, Schema
from penstock.types.replay import MappedStore

_LATER_PROOFS = 2**32
"""Proofs above the expected one that are accepted, because streams of other processes may have requested some."""


class StoreReader:
    """Read-only view of one store. `gather` may be called from any thread."""

    def __init__(self, store: MappedStore, schema: Schema) -> None:
        """Maps the store.

        Raises:
            ConfigurationError: This process can't read that store, for example because it runs on another host.
        """
        folder = Path(store.folder)
        if read_identity(folder) != store.identity:
            raise ConfigurationError(
                f"{folder} holds another store than the replay service's, or what the service writes there is not seen"
                " here"
            )
        if read_schema(folder) != schema:
            raise ConfigurationError(f"{folder} holds a store of another schema")
        try:
            descriptor = os.open(folder / SEGMENTS_FILE, os.O_RDONLY)
            try:
                memory = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise ConfigurationError(f"can't map the store in {folder}: {in_words(error, folder)}") from None
        self._regions = Regions(memory, schema, len(memory))
        self._damaged = 0

    def shows(self, proof: int) -> bool:
        """Returns whether the service's proof, or a later one, is visible here.

        If it is, this is the memory that the service writes. On a file system that is not coherent, such as NFS, a
        mapping keeps the values that it has read once.
        """
        return 0 <= int(self._regions.proof[0]) - proof < _LATER_PROOFS

    def gather(self, keys: NDArray[np.uint64], into: Columns) -> bool:
        """Copies the columns of these segments, in this order, decoded, to columns for the same number of segments.

        Columns of segments that are present but can't be decoded are replaced as in `compression.void`, and counted.

        Returns:
            Whether all segments were still present after the copy.
        """
        rows = self._regions.rows(keys)
        failed = self._regions.gather(rows, into)
        in_order()
        if not (self._regions.headers["key"][rows] == keys).all():
            return False
        compression.void(into, failed)
        self._damaged += len(failed)
        return True

    def take_damaged(self) -> int:
        """Returns the number of segments' columns that could not be decoded since the last call."""
        damaged, self._damaged = self._damaged, 0
        return damaged
