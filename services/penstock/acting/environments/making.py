"""What an environment is made from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.acting.environments.varied import Turns
from penstock.acting.environments.wrappers.named import Wrapping

TIMEOUT_S = 120.0
"""Seconds that a call of an environment in a worker process may take if nothing else is said."""


@dataclass(frozen=True, slots=True)
class Making:
    """An environment to make, once or several times.

    Attributes:
        env_id: Gymnasium id, package:Id-v0, or another name (`machine.environment_names`).
        kwargs: Arguments for `gymnasium.make`.
        imports: Modules that register environments.
        wrappers: Wrappers around each environment, applied in this order.
        vectorization: sync, process for worker processes, native for the environment's own vectorised form, or auto
            (`native.choice.is_chosen`).
        workers: Worker processes, of which none has fewer than one environment.
        timeout_s: Seconds that a call of an environment in a worker process may take.
        python: Path of another interpreter, whose packages have the environment; None: this one.
        use_masks: Whether action masks are used.
        info_metrics: Keys of the infos whose values are reported.
        turns: The variants of which each episode is one, with kwargs and wrappers of their own; None: all episodes are
            of these.
    """

    env_id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    imports: Sequence[str] = ()
    wrappers: Sequence[Wrapping] = ()
    vectorization: str = "sync"
    workers: int = 1
    timeout_s: float = TIMEOUT_S
    python: str | None = None
    use_masks: bool = True
    info_metrics: Sequence[str] = ()
    turns: Turns | None = None
