"""The process in which a run's environments are checked before the run starts. Started by `cli.environment_check`.

It reads one JSON line, the request, from standard input, and writes JSON lines to the descriptor that its argument
names: what begins (`stage`, `name`), and at last either `warnings` or `refused`. Environments may print what they like:
that goes elsewhere.
"""

import faulthandler
import json
import os
import sys

from penstock.acting import faults
from penstock.acting.environment_check import Task, check
from penstock.errors import ConfigurationError


def main() -> None:
    """Checks, answers, and ends, whatever threads the environments have left."""
    answers = int(sys.argv[1])
    # Not for what the environments start.
    os.set_inheritable(answers, False)
    faulthandler.enable()
    request = json.loads(sys.stdin.readline())
    # Nor is this process's input, which ends when its parent does.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # An environment may be a module of the current folder, unless one that is installed has its name.
    sys.path.append(os.getcwd())  # noqa: PTH109 - pathlib need not be loaded

    def answer(**values: object) -> None:
        os.write(answers, (json.dumps(values) + "\n").encode())

    tasks = [Task(**task) for task in request.pop("tasks")]
    try:
        warnings = check(tasks=tasks, progress=lambda stage, name: answer(stage=stage, name=name), **request)
    except ConfigurationError as error:
        answer(refused=faults.one_line(str(error)))
    else:
        answer(warnings=warnings)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
