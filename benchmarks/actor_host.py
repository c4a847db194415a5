"""One host of `benchmarks.many_actors`: forks actors from a template process until its standard input ends.

    python -m benchmarks.actor_host FOLDER FIRST COUNT OPTION...

The actors are named actor-FIRST and up, and their logs are in FOLDER. Forked actors share the memory of the imported
modules, as those of `penstock train` do.
"""

import sys
import threading
import time
from pathlib import Path

from penstock.local.children import Children, service_command
from penstock.local.template import Template

_POLL_S = 0.2


def main() -> None:
    """Starts the actors, restarts those that die, and ends them when standard input ends."""
    folder, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    options, ended = sys.argv[4:], threading.Event()

    def await_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=await_end, daemon=True).start()
    with Template() as template, Children(max_restarts=3, template=template) as children:
        while template.pending:
            time.sleep(_POLL_S)
        for number in range(first, first + count):
            name = f"actor-{number}"
            children.add(name, service_command("actor", *options), folder / f"{name}.log")
        while not ended.wait(_POLL_S):
            for line in children.revive():
                print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
