"""Environments that fail in one step, or interfere with their process.

Importing this module registers Failing-v0, Rude-v0, Parent-v0, Fragile-v0 and Once-v0 with Gymnasium.
"""

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

FAULTS = (
    "raises",
    "exits",
    "interrupts",
    "old",
    "nothing",
    "reward none",
    "reward nan",
    "reward large",
    "reward vector",
    "done vector",
    "info list",
    "observation nan",
    "observation large",
    "observation shape",
    "observation none",
    "reset raises",
    "reset old",
)
"""Kinds of `Failing` that end a call and can't be trained on."""


class Failing(gymnasium.Env[NDArray[np.float64], np.int64]):
    """Observes its step and 1; action 1 is rewarded; an episode has 50 steps.

    Attributes:
        kind: Kind of fault.
        at: Number of the first step that fails, counted over episodes; -1 for none.
        once: Path of a file. The fault then occurs only in the first process and environment that reaches it.
        since: Path of a file. While the file does not exist, no step fails; afterwards, every step from `at` on fails.
        pause_s: Seconds per step.
    """

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(
        self, kind: str = "raises", at: int = 5, once: str = "", since: str = "", pause_s: float = 0.0
    ) -> None:
        self._kind, self._at, self._once, self._since, self._pause_s = kind, at, once, since, pause_s
        self._life = self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._step = 0
        if self._kind.startswith("reset") and self._is_due():
            while self._kind == "reset hangs":
                time.sleep(0.1)
            if self._kind == "reset old":
                return self._observe()
            raise RuntimeError("simulator lost at reset")
        return self._observe(), {}

    def step(self, action: np.int64) -> Any:
        if self._pause_s:
            time.sleep(self._pause_s)
        self._life, self._step = self._life + 1, self._step + 1
        outcome = [self._observe(), float(action), self._step >= 50, False, {}]
        if self._kind.startswith("reset") or not self._is_due():
            return tuple(outcome)
        match self._kind:
            case "raises":
                raise RuntimeError("simulator lost\nand not found")
            case "exits":
                raise SystemExit("no display")
            case "interrupts":
                raise KeyboardInterrupt
            case "kills":
                os.kill(os.getpid(), signal.SIGKILL)
            case "leaves":
                os._exit(7)
            case "closes":
                os.closerange(3, 1024)
            case "hangs":
                while True:
                    time.sleep(0.1)
            case "old":
                return outcome[0], outcome[1], outcome[2], {}
            case "nothing":
                return None
            case "reward none":
                outcome[1] = None
            case "reward nan":
                outcome[1] = float("nan")
            case "reward large":
                outcome[1] = 1e300
            case "reward vector":
                outcome[1] = np.ones(2)
            case "done vector":
                outcome[2] = np.ones(2, np.bool_)
            case "info list":
                return (*outcome[:4], [1, 2])
            case "observation nan":
                outcome[0] = np.array([0.0, np.nan])
            case "observation large":
                outcome[0] = np.array([0.0, 1e40])
            case "observation outside":
                outcome[0] = np.array([1e6, 1.0])
            case "observation shape":
                outcome[0] = np.zeros(3)
            case "observation none":
                outcome[0] = None
        return tuple(outcome)

    def _is_due(self) -> bool:
        if self._at < 0 or self._life < self._at or (self._since and not Path(self._since).exists()):
            return False
        if not self._once:
            return True
        with suppress(FileExistsError):
            os.close(os.open(Path(self._once), os.O_CREAT | os.O_EXCL))
            return True
        return False

    def _observe(self) -> NDArray[np.float64]:
        return np.array([self._step / 50.0, 1.0])


class Rude(Failing):
    """Ignores signals, changes the working directory, starts a thread, and fails to close."""

    def __init__(self, later: bool = False) -> None:
        """Ignores signals in each reset too, if `later`."""
        super().__init__(at=-1)
        self._later = later
        self._ignore_signals()
        os.chdir("/")
        threading.Thread(target=threading.Event().wait).start()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self._later:
            self._ignore_signals()
        return super().reset(seed=seed, options=options)

    def _ignore_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)

    def close(self) -> None:
        raise RuntimeError("can't close")


class Parent(Failing):
    """Forks a child, and ends it by SIGTERM when closed."""

    def __init__(self) -> None:
        super().__init__(at=-1)
        self._child = os.fork()
        while not self._child:
            time.sleep(0.1)

    def close(self) -> None:
        os.kill(self._child, signal.SIGTERM)
        os.waitpid(self._child, 0)


class Fragile(Failing):
    """Fails to be created and closed once the file `gone` exists."""

    def __init__(self, gone: str = "") -> None:
        super().__init__(at=-1)
        self._gone = gone
        self._look()

    def close(self) -> None:
        self._look()

    def _look(self) -> None:
        if self._gone and Path(self._gone).exists():
            raise SystemExit("simulator gone")


class Once(Failing):
    """Can be made only once in a process, as an emulator in C, or `never` again."""

    made = False

    def __init__(self, never: str = "") -> None:
        super().__init__(at=-1)
        if Once.made or (never and Path(never).exists()):
            raise RuntimeError("can't create multiple emulators")
        Once.made = True
        if never:
            Path(never).touch()


gymnasium.register("Failing-v0", f"{__name__}:Failing", disable_env_checker=True)
gymnasium.register("Rude-v0", f"{__name__}:Rude", disable_env_checker=True)
gymnasium.register("Parent-v0", f"{__name__}:Parent", disable_env_checker=True)
gymnasium.register("Once-v0", f"{__name__}:Once", disable_env_checker=True)
gymnasium.register("Fragile-v0", f"{__name__}:Fragile", disable_env_checker=True)
