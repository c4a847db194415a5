"""A file that a service touches while it is ready, so that a health check need not start Python.

The task that touches it runs on the event loop of the service's gRPC server. The file therefore grows old when the
server no longer answers, as well as when the process has ended. docker-compose.yml has the check.
"""

import asyncio
import contextlib
import os
from pathlib import Path

from penstock.errors import ConfigurationError
from penstock.machine.files import open_own
from penstock.machine.system_errors import in_words

INTERVAL_S = 5.0
"""Seconds between two touches. A health check allows several of them."""


class ReadyFile:
    """The file of one service. Used on the event loop of its server."""

    def __init__(self, path: Path) -> None:
        """Creates the file and begins to touch it. Raises `ConfigurationError` if it can't be written."""
        self._path = path
        try:
            self._touch()
        except OSError as error:
            raise ConfigurationError(
                f"can't write telemetry.ready_file {path}: "
                + in_words(error, path, "name a file in a folder that exists and can be written, or none")
            ) from None
        self._task = asyncio.get_running_loop().create_task(self._touch_regularly())

    def close(self) -> None:
        """Removes the file: the service is no longer ready."""
        self._task.cancel()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _touch(self) -> None:
        descriptor = open_own(self._path, os.O_WRONLY | os.O_CREAT)
        try:
            os.utime(descriptor)
        finally:
            os.close(descriptor)

    async def _touch_regularly(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            # A disk that can't be written for a while must not end the touches.
            with contextlib.suppress(OSError):
                self._touch()
