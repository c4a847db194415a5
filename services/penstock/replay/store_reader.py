"""Reads the columns of a store that another process of this host writes: a learner's batches without a socket.

The store's rows may be overwritten while they are read. A row's key is zeroed before that and written last, so whoever
finds the key unchanged after copying has copied one segment. That the rows seen here are the service's own must be
proved first, by `shows`. Called by `rpc.batch_source`.
"""

import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError
from penstock.replay.description import read_schema
from penstock.replay.layout import SEGMENTS_FILE, Regions
from penstock.replay.records import read_identity
from penstock.types import Columns, MappedStore, Schema

_LATER_PROOFS = 2**32
"""Streams of other processes may have asked meanwhile."""


class StoreReader:
    """A read-only view of one store. `gather` may be called from any thread."""

    def __init__(self, store: MappedStore, schema: Schema) -> None:
        """Maps the store.

        Raises:
            ConfigurationError: This process does not see that store: it runs on another host, or may not read it.
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
            raise ConfigurationError(f"can't map the store in {folder}: {error.strerror}") from None
        self._regions = Regions(memory, schema, len(memory))

    def shows(self, proof: int) -> bool:
        """Whether the service's proof can be read here, or a later one: this is the memory that the service writes.

        On a file system that is not coherent, such as NFS, a mapping keeps what it once read.
        """
        return 0 <= int(self._regions.proof[0]) - proof < _LATER_PROOFS

    def gather(self, keys: NDArray[np.uint64], into: Columns) -> bool:
        """Copies these segments' columns, in this order, into columns of as many.

        Returns:
            Whether all of them were there still when they had been copied.
        """
        rows = self._regions.rows(keys)
        self._regions.gather(rows, into)
        return bool((self._regions.headers["key"][rows] == keys).all())
