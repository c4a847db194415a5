"""Prints the status of a run twice a second, one JSON object a line: the eyes of the drill in a cluster's network.

python -m tests.e2e.nodes.watcher RUN, where RUN is the run's folder or host:port of its learner. A folder's list of
services is read again for each status, because a learner that is started again may have another address. Each line has
the `time` by `time.time` at which the answer came, and the `status`, null if the learner did not answer.
"""

import json
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.rpc.clients.status import StatusClient
from penstock.rpc.loop import LoopThread
from penstock.run_folder import LEARNER, RunFolder
from penstock.types.place import Place
from penstock.types.records import plain

INTERVAL_S = 0.5
_ANSWER_S = 2.0


class Asker:
    """Asks the learner of one run for its status. It keeps the connection until the address changes."""

    def __init__(self, thread: LoopThread, run: str) -> None:
        self._thread, self._run = thread, run
        self._place = Place()
        self._client: StatusClient | None = None

    def ask(self) -> dict[str, Any] | None:
        """Returns the status in its plain form; None if there is no answer."""
        try:
            place = Place((self._run,)) if ":" in self._run else RunFolder(Path(self._run)).places()[LEARNER]
            if place != self._place:
                self.close()
                self._place, self._client = place, StatusClient(self._thread, place)
            assert self._client is not None
            return plain(self._client.get(_ANSWER_S))
        except (OSError, ValueError, KeyError, PenstockError):
            return None

    def close(self) -> None:
        """Closes the connection."""
        if self._client is not None:
            self._client.close()


def main(run: str) -> None:
    """Prints until the reader ends."""
    with closing(LoopThread()) as thread, closing(Asker(thread, run)) as asker, suppress(BrokenPipeError):
        while True:
            began = time.monotonic()
            status = asker.ask()
            print(json.dumps({"time": time.time(), "status": status}), flush=True)
            time.sleep(max(0.0, began + INTERVAL_S - time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1])
