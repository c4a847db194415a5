"""The process that checks a run's environments before the run starts.

It reads the request, one JSON line, from standard input, and writes JSON lines to the descriptor given as its argument:
one per stage as it begins (`stage`, `name`), and finally `refused` and `unknown`, or `env_id`, `warnings`, `notices`,
`offsets`, `alone`, `agents`, `sizes` and `store_bytes`, the size of a store for the requested number of segments. The
output of environments does not reach that descriptor.
"""

import faulthandler
import json
import os
import signal
import sys
from typing import Any

from penstock.acting.environments.environment_check import Task, check
from penstock.acting.environments.making import Making
from penstock.acting.values.spaces import segment_schema
from penstock.errors import ConfigurationError, UnknownEnvironment
from penstock.machine import foreign_errors
from penstock.machine.environment_arguments import read_tables
from penstock.process.environment_process import seed_generators, set_arguments
from penstock.replay.store.layout import bytes_for


def main() -> None:
    """Runs the checks, writes the answer and exits, even if environments have left threads."""
    answers = int(sys.argv[1])
    # Processes that environments start must not inherit the descriptor.
    os.set_inheritable(answers, False)
    faulthandler.enable()
    request: Any = json.loads(sys.stdin.buffer.readline())
    set_arguments(request["making"]["env_id"])
    seed_generators("environment check")
    # As in a service, KeyboardInterrupt is an exception of an environment.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    # They must not inherit standard input either, which ends when the parent process does.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def answer(**values: object) -> None:
        os.write(answers, (json.dumps(values) + "\n").encode())

    segments, recorded = request.pop("segments"), request.pop("recorded")
    # JSON has no tuples.
    recorded["memory"] = recorded["memory"] and tuple(recorded["memory"])
    making = request.pop("making")
    making["wrappers"] = read_tables(making["wrappers"])
    tasks = []
    for task in request.pop("tasks"):
        variants: Any = read_tables(task.pop("variants"))
        tasks.append(Task([Making(kwargs=kwargs, **making) for kwargs in variants], **task))
    try:
        checked = check(tasks=tasks, progress=lambda stage, name: answer(stage=stage, name=name), **request)
    except ConfigurationError as error:
        answer(refused=foreign_errors.one_line(str(error)), unknown=isinstance(error, UnknownEnvironment))
    else:
        schema = segment_schema(checked.spec, **recorded)
        store_bytes = bytes_for(segments, schema)
        answer(
            env_id=checked.env_id,
            warnings=checked.warnings,
            notices=checked.notices,
            store_bytes=store_bytes,
            offsets=list(checked.offsets),
            alone=checked.alone,
            agents=checked.agents,
            sizes=checked.sizes,
        )
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
