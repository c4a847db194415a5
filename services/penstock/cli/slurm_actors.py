"""`penstock launch slurm-actors`: changes the number of tasks that run a launched run's actors, or replaces them."""

import sys
import time
from collections.abc import Sequence
from typing import NoReturn

from penstock.cli.named import chosen_run
from penstock.cli.one_line_parser import OneLineParser
from penstock.cli.operator import asking, operator_of
from penstock.errors import ConfigurationError, PenstockError, Unavailable
from penstock.launch import slurm, slurm_jobs
from penstock.runs.folder import LEARNER, RunFolder

_AUTO_INTERVAL_S = 10.0
_RESTART_STEPS, _RESTART_PAUSE_S = 4, 3.0
"""Steps in which tasks are replaced, and the seconds until the actors of one have left."""

_ANSWER_S = 5.0


def command(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    parser = OneLineParser(
        prog="penstock launch slurm-actors", description="Change the number of tasks that run a run's actors."
    )
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    parser.add_argument(
        "tasks",
        metavar="N",
        help="tasks of the array at a time; auto: as many as the learner wants; restart: replace all, as for new code",
    )
    parser.add_argument("--actors-per-task", metavar="K", type=int, default=1, help="actors of each task, for auto [1]")
    options = parser.parse_args(list(arguments))
    folder = RunFolder(chosen_run(options.run))
    if options.tasks == "auto":
        _follow_the_learner(folder, max(1, options.actors_per_task))
    array = slurm_jobs.jobs_of(folder).actors
    if options.tasks == "restart":
        _restart(folder, array)
    elif options.tasks.isdecimal():
        slurm_jobs.set_tasks(array, int(options.tasks))
        print(f"array {array}: {options.tasks} tasks at a time")
    else:
        raise ConfigurationError(f"the number of tasks must be a whole number, auto or restart; got {options.tasks!r}")
    return 0


def _follow_the_learner(folder: RunFolder, actors_per_task: int) -> NoReturn:
    """Changes the number of tasks whenever the learner wants another, until this process is ended.

    Neither the jobs nor the services need exist yet, and Slurm may be away for a while.
    """
    changed_to: int | None = None
    while True:
        try:
            with asking(folder.places()[LEARNER], operator_of(folder)) as client:
                wanted = client.get(_ANSWER_S).wanted_actors
            array = slurm_jobs.jobs_of(folder).actors
            tasks = min(-(-wanted // actors_per_task), slurm.size_of(array)) if wanted is not None else changed_to
            if tasks is not None and tasks != changed_to:
                slurm_jobs.set_tasks(array, tasks)
                changed_to = tasks
                print(f"array {array}: {tasks} tasks at a time", flush=True)
        except (OSError, KeyError, ValueError, Unavailable):
            # The services start or move.
            pass
        except PenstockError as error:
            print(f"penstock: {error}", file=sys.stderr, flush=True)
        time.sleep(_AUTO_INTERVAL_S)


def _restart(folder: RunFolder, array: int) -> None:
    """Replaces the running tasks in some steps. Each step waits until as many actors as before have joined."""
    tasks = slurm.running_tasks(array)
    with asking(folder.places()[LEARNER], operator_of(folder)) as client:
        actors = client.get(_ANSWER_S).actors
        size = -(-len(tasks) // _RESTART_STEPS)
        for first in range(0, len(tasks), size):
            for task in tasks[first : first + size]:
                slurm.requeue(task)
            done = min(first + size, len(tasks))
            time.sleep(_RESTART_PAUSE_S)
            while client.get(_ANSWER_S).actors < actors:
                time.sleep(1.0)
            print(f"array {array}: {done} of {len(tasks)} tasks replaced", flush=True)
