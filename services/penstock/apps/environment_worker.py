"""The process of a worker, in which an actor runs some of its environments (`acting.environments.workers`).

The arguments are the descriptor of the connection to the actor, and the actor's process id. The process imports neither
torch nor gRPC. It ends with the actor, also if that is killed.
"""

import faulthandler
import os
import select
import signal
import socket
import sys
import threading

from penstock.acting.environments.workers.worker import work
from penstock.machine.background import end_with
from penstock.process.environment_process import seed_generators


def main() -> None:
    """Works until the actor closes the connection, and exits, even if environments have left threads."""
    connection, actor = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    # Processes that environments start must not inherit the descriptor.
    connection.set_inheritable(False)
    _end_with(actor, connection)
    faulthandler.enable()
    # Ctrl-C and the signals of a batch system reach the whole group, and the actor ends its workers.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: None)
    work(connection, seed_generators)
    sys.stdout.flush()
    os._exit(0)


def _end_with(actor: int, connection: socket.socket) -> None:
    """Ends this process when the actor ends, even in a call of an environment that does not return."""
    if end_with(actor):
        return

    def watch() -> None:
        hangup = select.poll()
        hangup.register(connection, 0)
        hangup.poll()
        # Time to close the environments if the actor has asked for it.
        threading.Event().wait(_CLOSING_S)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


_CLOSING_S = 5.0

if __name__ == "__main__":
    main()
