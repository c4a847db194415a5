"""Prints the status of a run twice a second, one JSON object a line: the eyes of the drill in a cluster's network.

python -m tests.e2e.nodes.watcher RUN, where RUN is the run's folder or host:port of its learner. It presents the
operator's certificate, in the run's folder or named by PENSTOCK__SECURITY__CERTIFICATE. A folder's list of services is
read again for each status, because a learner that is started again may have another address. Each line has
the `time` by `time.time` at which the answer came, and the `status`, null if the learner did not answer.
"""

import json
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from penstock.cli.operator import operator_of
from penstock.errors import PenstockError
from penstock.rpc.clients.operator import StatusClient
from penstock.rpc.loop import LoopThread
from penstock.runs.folder import LEARNER, RunFolder
from penstock.types.location import Place
from penstock.types.records import plain

INTERVAL_S = 0.5
_ANSWER_S = 2.0


class Asker:
    """Asks the learner of one run for its status. It keeps the connection until the address changes."""

    def __init__(self, run: str) -> None:
        self._run, self._folder = run, None if ":" in run else RunFolder(Path(run))
        self._place = Place()
        self._thread: LoopThread | None = None
        self._client: StatusClient | None = None

    def ask(self) -> dict[str, Any] | None:
        """Returns the status in its plain form; None if there is no answer."""
        try:
            place = Place((self._run,)) if self._folder is None else self._folder.places()[LEARNER]
            if self._client is None or place != self._place:
                self.close()
                self._thread = LoopThread(operator_of(self._folder))
                self._place, self._client = place, StatusClient(self._thread, place)
            return plain(self._client.get(_ANSWER_S))
        except (OSError, ValueError, KeyError, PenstockError):
            return None

    def close(self) -> None:
        """Closes the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._thread is not None:
            self._thread.close()
            self._thread = None


def main(run: str) -> None:
    """Prints until the reader ends."""
    with closing(Asker(run)) as asker, suppress(BrokenPipeError):
        while True:
            began = time.monotonic()
            status = asker.ask()
            print(json.dumps({"time": time.time(), "status": status}), flush=True)
            time.sleep(max(0.0, began + INTERVAL_S - time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1])
