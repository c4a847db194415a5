"""The work of a worker process: it makes and steps some of the environments of an actor.

It ends when the actor closes the connection.
"""

import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from penstock.acting.environments.making import Making
from penstock.acting.environments.single_environments import SingleEnvironments
from penstock.acting.environments.varied import Turns
from penstock.acting.environments.vectors import make_environments
from penstock.acting.environments.workers.shared import (
    DONE,
    STEP,
    Channel,
    Layout,
    SharedRows,
    decode_variations,
    line,
)
from penstock.errors import ConfigurationError, EnvironmentFailed, UnknownEnvironment
from penstock.machine import foreign_errors
from penstock.machine.environment_arguments import read_tables
from penstock.types.spaces import EnvironmentSpec


def work(connection: socket.socket, seed: Callable[..., None]) -> None:
    """Makes the requested environments, and steps them until the connection is closed.

    `seed` seeds the generators of the whole process, as `process.environment_process.seed_generators`.
    """
    channel = Channel(connection)
    # A process that an environment forks would keep the connection open after the end of this one.
    os.register_at_fork(after_in_child=connection.close)
    made = _make(channel, seed)
    if made is None:
        return
    environments, rows, turns = made
    told, shown = 0, 0
    while message := channel.receive():
        try:
            if message == STEP:
                # Copies, because an environment may keep its action, and the next one overwrites the rows.
                outcome = environments.step(tuple(leaf.copy() for leaf in rows.action))
                for mine, values in zip(rows.outcome, outcome[:5], strict=True):
                    mine[...] = values
                if rows.info is not None and outcome.info is not None:
                    rows.info[...] = outcome.info
            elif "variations" in (request := json.loads(message)):
                assert turns is not None
                turns.change(decode_variations(request["variations"]))
            else:
                seeds = request["reset"]
                seed("environment worker", *seeds)
                environments.reset(seeds)
        except EnvironmentFailed as failed:
            channel.send(line(failed=failed.what, environment=failed.environment))
            continue
        notes, notices = environments.progress.converted, environments.progress.notices
        news = {"notes": notes[told:], "notices": notices[shown:]}
        channel.send(line(**news) if any(news.values()) else DONE)
        told, shown = len(notes), len(notices)
    try:
        environments.close()
    except foreign_errors.MISBEHAVIOUR as error:
        channel.send(line(failed=f"close raised {foreign_errors.explain(error)}", environment=None))


def _make(channel: Channel, seed: Callable[..., None]) -> tuple[SingleEnvironments, SharedRows, Turns | None] | None:
    """Returns the requested environments and their rows; None if they can't be made, or the actor has ended."""
    request = json.loads(channel.receive() or "null")
    if request is None:
        return None
    sys.argv, first, count = request["arguments"], request["first"], request["count"]
    expected = request["expected"]
    seed("environment worker", request["seed"])
    kwargs: Any = read_tables(request["kwargs"])
    wrappers: Any = read_tables(request["wrappers"])
    variations = request["variations"]
    turns = None if variations is None else Turns(decode_variations(variations))
    making = Making(
        request["env_id"],
        kwargs,
        request["imports"],
        wrappers,
        python=request["python"],
        use_masks=request["use_masks"],
        info_metrics=request["info_metrics"],
        turns=turns,
    )
    try:
        made = make_environments(making, count, expected=expected and EnvironmentSpec.from_json(expected))
    except ConfigurationError as error:
        unknown = isinstance(error, UnknownEnvironment)
        channel.send(line(refused=foreign_errors.one_line(str(error)), unknown=unknown))
        return None
    assert isinstance(made, SingleEnvironments)
    arrays = [(leaf.dtype.str, leaf.shape[1:]) for leaf in made.observation]
    channel.send(line(spec=made.spec.to_json(), arrays=arrays, timed=made.timed, notices=made.notices))
    descriptors, layout = socket.recv_fds(channel.connection, len(STEP), 1)[1], channel.receive()
    if not layout:
        return None
    rows = SharedRows(descriptors[0], Layout.from_json(json.loads(layout)), range(first, first + count))
    os.close(descriptors[0])
    made.move_to(rows.observation, rows.action_mask)
    channel.send(DONE)
    return made, rows, turns
