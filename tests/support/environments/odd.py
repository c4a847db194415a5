"""Environments that misbehave, one for each kind, and the message that the user must receive.

Importing this module registers `Odd-<kind>-v0` with Gymnasium for every kind of `KINDS`. A normal step takes a
millisecond and rewards action 1; an episode has 50 steps.
"""

import asyncio
import atexit
import ctypes
import faulthandler
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Tuple

EPISODE = 50
LATE = 300
"""Steps of an environment before late kinds misbehave, so that some windows are collected before."""


class Where(Enum):
    """Time and place of the report about a kind's fault, and the end of the run."""

    REFUSED = "by the check, before anything starts: exit code 2, and nothing is left behind"
    WARNED = "by the check, as a warning: the run continues to its end"
    HARMLESS = "nowhere: the run continues to its end, and nothing of the environment outlives it"
    TRAINING = "while training: the environment is named; the run ends with code 3, or continues to its end"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of misbehaviour.

    Attributes:
        where: Place of the report.
        says: Texts that the terminal must show.
        constructor, reset, step: Faulty behaviour, called with the environment; the results of `reset` and `step`
            replace the normal ones.
        late: Whether the kind misbehaves only from the environment's step `LATE` on.
        spaces: Observation and action space, if they differ from the normal ones.
        hangs: Whether the check must reach its deadline.
        alone: Whether the kind affects its whole process.
    """

    where: Where
    says: tuple[str, ...] = ()
    constructor: Callable[["Odd"], object] | None = None
    reset: Callable[["Odd", Any], Any] | None = None
    step: Callable[["Odd", Any], Any] | None = None
    late: bool = False
    spaces: Callable[[], tuple[gymnasium.Space[Any], gymnasium.Space[Any]]] | None = None
    hangs: bool = False
    alone: bool = False


class Odd(gymnasium.Env[Any, Any]):
    """An environment that is normal except for its kind."""

    def __init__(self, kind: str) -> None:
        self._kind, self._steps, self._total = KINDS[kind], 0, 0
        self.observation_space, self.action_space = Box(0.0, 1.0, (2,), np.float32), Discrete(2)
        if self._kind.spaces:
            self.observation_space, self.action_space = self._kind.spaces()
        if self._kind.constructor:
            self._kind.constructor(self)

    @property
    def _is_odd(self) -> bool:
        return not self._kind.late or self._total >= LATE

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        result: Any = (self._observe(), {})
        return self._kind.reset(self, result) if self._kind.reset and self._is_odd else result

    def step(self, action: Any) -> Any:
        time.sleep(0.001)
        self._steps, self._total = self._steps + 1, self._total + 1
        result: Any = (self._observe(), _total(action), self._steps >= EPISODE, False, {})
        return self._kind.step(self, result) if self._kind.step and self._is_odd else result

    def close(self) -> None:
        if self._kind is KINDS["close_raises"]:
            raise OSError("the window is gone")

    def _observe(self) -> Any:
        if not isinstance(self.observation_space, Box):
            return self.observation_space.sample()
        shape, dtype = self.observation_space.shape, self.observation_space.dtype
        return np.full(shape, min(1.0, self._steps / EPISODE), dtype)


def _total(action: Any) -> float:
    parts = action if isinstance(action, tuple) else (action,)
    return float(sum(np.sum(part) for part in parts))


def raises(error: BaseException) -> Callable[..., Any]:
    def fail(env: Odd, result: Any = None) -> Any:
        raise error

    return fail


def calls(function: Callable[[], object]) -> Callable[..., Any]:
    """Returns a behaviour that calls a function and is otherwise normal."""

    def call(env: Odd, result: Any = None) -> Any:
        function()
        return result

    return call


def gives(place: int, value: Any) -> Callable[[Odd, Any], Any]:
    """Returns a behaviour that replaces one of the values returned by `reset` or `step`."""
    return lambda env, result: (*result[:place], value, *result[place + 1 :])


def changes(place: int, change: Callable[[Any], Any]) -> Callable[[Odd, Any], Any]:
    """Returns a behaviour that changes one of the values returned by `reset` or `step`."""
    return lambda env, result: (*result[:place], change(result[place]), *result[place + 1 :])


def observes(value: float, dtype: type = np.float32) -> Callable[[Odd, Any], Any]:
    return lambda env, result: (np.array([0.5, value], dtype), *result[1:])


def hang() -> None:
    while True:
        time.sleep(1.0)


def hang_with_the_interpreter() -> None:
    """Hangs in C code that holds the interpreter lock, so that no other thread runs."""
    ctypes.PyDLL(None).sleep(10_000)


def abort() -> None:
    os.abort()


def crash() -> None:
    faulthandler._sigsegv()  # type: ignore[attr-defined]


def fork() -> None:
    """Leaves a child that ignores all signals and holds every inherited descriptor."""
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        while True:
            time.sleep(60.0)


def start_program() -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10_000)"])


def start_threads() -> None:
    for _ in range(20):
        threading.Thread(target=lambda: time.sleep(10_000), daemon=False).start()


def ignore_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def tells_the_time(env: Odd, result: Any) -> Any:
    """Observes a clock in microseconds, of which 10 ms pass in a step."""
    return (result[0] + 170_000_000_000_000 + 10_000 * env._steps, *result[1:])


def use_float64() -> None:
    # Here, because its import takes seconds, and most kinds are imported by a process that has no use for it.
    import torch

    torch.set_default_dtype(torch.float64)


def disable_gradients() -> None:
    import torch

    torch.set_grad_enabled(False)


def start_timer() -> None:
    """Interrupts the process's calls a hundred times per second."""
    signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)


def use_pool(*methods: str) -> None:
    for method in methods:
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.map(abs, [-1]) == [1]


def run_event_loop() -> None:
    asyncio.run(asyncio.sleep(0))


def change_the_process() -> None:
    """Does at once, for one run, what most of the kinds of a changed process do one by one, and more."""
    use_pool("fork")
    # A loop of this thread, and another one that runs in a thread.
    asyncio.set_event_loop(asyncio.new_event_loop())
    threading.Thread(target=asyncio.new_event_loop().run_forever, daemon=True).start()
    threading.Thread(target=lambda: time.sleep(3600.0), daemon=False).start()
    atexit.register(time.sleep, 3600.0)
    use_float64()
    disable_gradients()
    start_timer()
    np.seterr(all="raise")
    warnings.simplefilter("error")
    logging.disable(logging.CRITICAL)
    socket.setdefaulttimeout(0.01)
    os.environ.clear()
    os.chdir("/")
    os.umask(0o777)


def with_gradient(reward: float) -> object:
    import torch

    return torch.full((), reward, requires_grad=True) * 1.0


def print_much() -> None:
    print("x" * 100_000)
    print("y" * 100_000, file=sys.stderr)


def spaces_by_turn() -> Callable[[], tuple[gymnasium.Space[Any], gymnasium.Space[Any]]]:
    made = iter(range(1_000_000))
    return lambda: (Box(0.0, 1.0, (2 + next(made) % 2,), np.float32), Discrete(2))


def vector(high: float = 1.0) -> Box:
    return Box(0.0, high, (2,), np.float32)


def everything() -> Dict:
    """Returns a space with an image, a board, numbers and choices."""
    image, board = Box(0, 255, (36, 36, 4), np.uint8), Box(-1, 1, (6, 7), np.int8)
    return Dict({"image": image, "a b": Tuple([board, Box(-1.0, 1.0, (), np.float16)]), "": Discrete(3, start=-1)})


RUNTIME_ERROR = RuntimeError("simulator lost")
REFUSED, WARNED, HARMLESS, TRAINING = Where

KINDS: dict[str, Kind] = {
    # In the constructor.
    "constructor_raises": Kind(
        REFUSED, ("RuntimeError: simulator lost", "can't make"), constructor=raises(RUNTIME_ERROR)
    ),
    "constructor_raises_without_a_text": Kind(REFUSED, ("AssertionError",), constructor=raises(AssertionError())),
    "constructor_misses_a_file": Kind(
        REFUSED,
        ("FileNotFoundError", "scene.xml"),
        constructor=calls(lambda: open("scene.xml")),  # noqa: SIM115, PTH123
    ),
    "constructor_exits": Kind(REFUSED, ("SystemExit: no display",), constructor=raises(SystemExit("no display"))),
    "constructor_exits_with_code_2": Kind(REFUSED, ("SystemExit: 2",), constructor=raises(SystemExit(2))),
    "constructor_interrupts": Kind(REFUSED, ("KeyboardInterrupt",), constructor=raises(KeyboardInterrupt())),
    "constructor_hangs": Kind(
        REFUSED, ("creating", "did not end within"), constructor=calls(hang), hangs=True, alone=True
    ),
    "constructor_aborts": Kind(REFUSED, ("creating", "SIGABRT"), constructor=calls(abort), alone=True),
    "constructor_ends_the_process": Kind(
        REFUSED, ("creating", "exit code 0"), constructor=calls(lambda: os._exit(0)), alone=True
    ),
    # In reset.
    "reset_raises": Kind(REFUSED, ("in reset", "RuntimeError: simulator lost"), reset=raises(RUNTIME_ERROR)),
    "reset_exits": Kind(REFUSED, ("in reset", "SystemExit: 0"), reset=raises(SystemExit(0))),
    "reset_hangs": Kind(REFUSED, ("resetting", "did not end within"), reset=calls(hang), hangs=True, alone=True),
    "reset_of_the_old_interface": Kind(REFUSED, ("reset",), reset=lambda env, result: result[0]),
    "nan_in_reset": Kind(REFUSED, ("an observation with nan at [1] in reset",), reset=observes(np.nan)),
    "infinity_in_reset": Kind(REFUSED, ("an observation with inf at [1] in reset",), reset=observes(np.inf)),
    # In the first steps.
    "step_raises": Kind(REFUSED, ("in step", "RuntimeError: simulator lost"), step=raises(RUNTIME_ERROR)),
    "step_exits_with_code_2": Kind(REFUSED, ("in step", "SystemExit: 2"), step=raises(SystemExit(2))),
    "step_interrupts": Kind(REFUSED, ("in step", "KeyboardInterrupt"), step=raises(KeyboardInterrupt())),
    "step_hangs": Kind(REFUSED, ("stepping", "did not end within"), step=calls(hang), hangs=True, alone=True),
    "step_hangs_in_c": Kind(
        REFUSED, ("stepping", "did not end within"), step=calls(hang_with_the_interpreter), hangs=True, alone=True
    ),
    "step_crashes": Kind(REFUSED, ("stepping", "SIGSEGV"), step=calls(crash), alone=True),
    "step_of_the_old_interface": Kind(REFUSED, ("step",), step=lambda env, result: (*result[:3], {})),
    "nan_observation": Kind(REFUSED, ("an observation with nan at [1] in step 1",), step=observes(np.nan)),
    "observation_beyond_float32": Kind(
        REFUSED, ("an observation with 1e+300 at [1], which float32 can't hold",), step=observes(1e300, np.float64)
    ),
    "observation_of_another_shape": Kind(REFUSED, ("shape (3,)", "(2,)"), step=gives(0, np.zeros(3, np.float32))),
    "observation_that_is_no_array": Kind(REFUSED, ("step",), step=gives(0, "left")),
    "nan_reward": Kind(REFUSED, ("a reward of nan",), step=gives(1, float("nan"))),
    "infinite_reward": Kind(REFUSED, ("a reward of inf",), step=gives(1, float("inf"))),
    "reward_beyond_float32": Kind(REFUSED, ("a reward of 1e+300",), step=gives(1, 1e300)),
    "reward_beyond_the_largest_magnitude": Kind(
        REFUSED, ("a reward of 1e+30, above 1e+15", "environment.largest_magnitude"), step=gives(1, 1e30)
    ),
    "vector_reward": Kind(REFUSED, ("a reward of shape (2,)",), step=gives(1, np.zeros(2))),
    "no_reward": Kind(REFUSED, ("no reward (None)",), step=gives(1, None)),
    "reward_that_is_a_text": Kind(REFUSED, ("reward", "'much'"), step=gives(1, "much")),
    "terminated_that_is_no_truth": Kind(REFUSED, ("terminated as", "True or False"), step=gives(2, "no")),
    "info_that_is_no_dict": Kind(REFUSED, ("info",), step=gives(4, [1, 2])),
    # Spaces.
    "spaces_that_differ": Kind(REFUSED, ("observation_space", "(2,)", "(3,)"), spaces=spaces_by_turn()),
    "observations_of_any_length": Kind(
        REFUSED, ("observation space Sequence",), spaces=lambda: (Sequence(vector()), Discrete(2))
    ),
    "actions_of_any_length": Kind(
        REFUSED, ("Sequence at orders of its action space",), spaces=lambda: (vector(), Dict(orders=Sequence(vector())))
    ),
    "nothing_to_choose": Kind(WARNED, ("nothing to choose",), spaces=lambda: (vector(), Discrete(1))),
    "action_bounds_beyond_every_number": Kind(
        REFUSED,
        ("element 0 is between 1e+300 and inf", "distance to the bound"),
        spaces=lambda: (vector(), Box(1e300, np.inf, (1,), np.float64)),
        step=gives(1, 1.0),
    ),
    "action_bounds_far_below_0": Kind(
        REFUSED,
        ("element 0 is between -inf and -1e+16", "environment.largest_magnitude"),
        spaces=lambda: (vector(), Box(-np.inf, -1e16, (1,), np.float64)),
        step=gives(1, 1.0),
    ),
    # Accepted, with a warning.
    "observation_outside_of_its_space": Kind(
        WARNED, ("has 1e+06 in element 1", "its space allows 0 to 1"), step=observes(1e6)
    ),
    "extreme_reward": Kind(WARNED, ("a reward of 1e+12",), step=gives(1, 1e12)),
    "action_bounds_that_mean_none": Kind(
        WARNED, ("element 0", "and 1 others", "policy.widest_range"), spaces=lambda: (vector(), Box(-1e6, 1e6, (2,)))
    ),
    "action_bounds_that_may_mean_none": Kind(
        WARNED, ("element 0", "is scaled", "infinite"), spaces=lambda: (vector(), Box(0, 1e6, (1,)))
    ),
    "action_bound_far_from_0": Kind(
        WARNED, ("begins at 1e+09", "distance to the bound"), spaces=lambda: (vector(), Box(1e9, np.inf, (1,)))
    ),
    "reward_of_shape_1": Kind(
        WARNED, ("a reward of shape (1,)", "its one element is used"), step=gives(1, np.ones(1, np.float32))
    ),
    "end_of_shape_1": Kind(WARNED, ("terminated of shape (1,)",), step=changes(2, lambda ended: [ended])),
    "close_raises": Kind(WARNED, ("in close", "OSError: the window is gone")),
    # Accepted; the run must not be affected, and nothing may be left behind.
    "forked_child": Kind(HARMLESS, constructor=calls(fork), alone=True),
    "program_that_goes_on": Kind(HARMLESS, constructor=calls(start_program), alone=True),
    "threads_that_go_on": Kind(HARMLESS, constructor=calls(start_threads), alone=True),
    "ignored_signals": Kind(HARMLESS, constructor=calls(ignore_signals), alone=True),
    "changed_directory": Kind(HARMLESS, constructor=calls(lambda: os.chdir("/")), alone=True),
    "much_output": Kind(HARMLESS, step=calls(print_much), alone=True),
    "map_coordinates": Kind(
        HARMLESS,
        ("2 of 2 numbers of an observation are stored as differences",),
        reset=changes(0, lambda values: values + 4e6),
        step=changes(0, lambda values: values + 4e6),
        spaces=lambda: (Box(-np.inf, np.inf, (2,), np.float64), Discrete(2)),
    ),
    "matrix_of_numbers": Kind(HARMLESS, spaces=lambda: (Box(0.0, 1.0, (2, 3), np.float32), Discrete(2))),
    "column_of_integers": Kind(HARMLESS, spaces=lambda: (Box(0, 9, (6, 1), np.int16), Discrete(2))),
    "half_bounded_action": Kind(HARMLESS, spaces=lambda: (vector(), Box(-np.inf, -100.0, (1,)))),
    "integer_actions": Kind(HARMLESS, spaces=lambda: (vector(), MultiDiscrete(np.full((2, 2), 3), dtype=np.int16))),
    "nothing_in_common": Kind(HARMLESS, spaces=lambda: (everything(), Tuple([Discrete(2), MultiBinary((2, 2))]))),
    "reward_with_a_gradient": Kind(HARMLESS, step=changes(1, with_gradient)),
    "end_as_an_integer": Kind(HARMLESS, step=changes(2, int)),
    "offset_rewards_of_one_step": Kind(
        HARMLESS, step=lambda env, result: (result[0], 1e5 + result[1], True, *result[3:])
    ),
    "default_type_of_torch": Kind(HARMLESS, constructor=calls(use_float64), alone=True),
    "errors_of_numpy": Kind(HARMLESS, constructor=calls(lambda: np.seterr(all="raise")), alone=True),
    "warnings_as_errors": Kind(HARMLESS, constructor=calls(lambda: warnings.simplefilter("error")), alone=True),
    "cleared_variables": Kind(HARMLESS, constructor=calls(os.environ.clear), alone=True),
    "silent_logs": Kind(HARMLESS, constructor=calls(lambda: logging.disable(logging.CRITICAL)), alone=True),
    "short_socket_timeout": Kind(HARMLESS, constructor=calls(lambda: socket.setdefaulttimeout(0.01)), alone=True),
    "closed_umask": Kind(HARMLESS, constructor=calls(lambda: os.umask(0o777)), alone=True),
    "timer": Kind(HARMLESS, constructor=calls(start_timer), alone=True),
    "event_loop": Kind(HARMLESS, step=calls(run_event_loop), alone=True),
    "pool_of_processes": Kind(HARMLESS, constructor=calls(lambda: use_pool("fork")), alone=True),
    "pools_of_new_processes": Kind(HARMLESS, constructor=calls(lambda: use_pool("spawn", "forkserver")), alone=True),
    "everything_of_the_process": Kind(
        HARMLESS, constructor=calls(change_the_process), step=calls(run_event_loop), alone=True
    ),
    # Late.
    "coarse_integers": Kind(
        TRAINING,
        ("changed by only", "subtract a constant"),
        reset=tells_the_time,
        step=tells_the_time,
        spaces=lambda: (Box(-(2**62), 2**62, (2,), np.int64), Discrete(2)),
    ),
    "late_nan_observation": Kind(TRAINING, ("nan",), step=observes(np.nan), late=True),
    "late_nan_reward": Kind(TRAINING, ("nan",), step=gives(1, float("nan")), late=True),
    "late_infinite_reward": Kind(TRAINING, ("inf",), step=gives(1, float("inf")), late=True),
    "late_extreme_reward": Kind(TRAINING, ("a reward of 3e+38, above 1e+15",), step=gives(1, 3e38), late=True),
    "late_vector_reward": Kind(TRAINING, ("reward",), step=gives(1, np.zeros(2)), late=True),
    "late_exception": Kind(TRAINING, ("RuntimeError: simulator lost",), step=raises(RUNTIME_ERROR), late=True),
    "late_exception_in_reset": Kind(
        TRAINING, ("RuntimeError: simulator lost",), reset=raises(RUNTIME_ERROR), late=True
    ),
    "late_exit": Kind(TRAINING, ("SystemExit",), step=raises(SystemExit(0)), late=True),
    "late_exit_with_code_2": Kind(TRAINING, ("SystemExit",), step=raises(SystemExit(2)), late=True),
    "late_interrupt": Kind(TRAINING, ("KeyboardInterrupt",), step=raises(KeyboardInterrupt()), late=True),
    "late_end_of_the_process": Kind(
        TRAINING, ("actor-0 ended with exit code 0",), step=calls(lambda: os._exit(0)), late=True
    ),
    "late_abort": Kind(TRAINING, ("actor-0 ended with SIGABRT",), step=calls(abort), late=True),
    "late_crash": Kind(TRAINING, ("actor-0 ended with SIGSEGV",), step=calls(crash), late=True),
    "late_hang": Kind(TRAINING, ("actor",), step=calls(hang), late=True),
    "late_hang_in_c": Kind(TRAINING, ("actor",), step=calls(hang_with_the_interpreter), late=True),
    "endless_episode": Kind(TRAINING, ("evaluation",), step=gives(2, False)),
    "late_forked_child": Kind(HARMLESS, reset=calls(fork), late=True),
}


def env_id(kind: str) -> str:
    """Returns the id under which a kind is registered."""
    return f"Odd-{kind.replace('_', '-')}-v0"


for _kind in KINDS:
    gymnasium.register(env_id(_kind), f"{__name__}:Odd", kwargs={"kind": _kind}, disable_env_checker=False)
