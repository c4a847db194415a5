"""Checks the environments of a run before it starts: each variant is made, reset and stepped twice as by an actor.

Environments are made and stepped by `acting.environments.vectors`, so that a fault has the message that it has in
training. `first_values` adds warnings. The check must run in its own process (`apps.environment_check`), because an
environment may hang, end its process, or change signal handlers and the working directory. This module does not import
torch.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from penstock.acting.environments import first_values
from penstock.acting.environments.frames import with_frames
from penstock.acting.environments.interfaces.parallel_agents import UnevenRows
from penstock.acting.environments.making import Making
from penstock.acting.environments.offsets import find_offsets, offsets_of
from penstock.acting.environments.progress import Progress
from penstock.acting.environments.registry import import_and_find
from penstock.acting.environments.single_environments import SingleEnvironments
from penstock.acting.environments.variants import require_same_spaces, variant_name
from penstock.acting.environments.vectors import (
    AgentEnvironments,
    Environments,
    MadeOnce,
    agents_of,
    make_environments,
)
from penstock.acting.environments.workers.pool import ProcessEnvironments
from penstock.acting.environments.wrappers.bodies import Sizes, common_sizes, wrapping
from penstock.acting.values import faults
from penstock.acting.values.info_metrics import SUCCESS
from penstock.acting.values.masks import MaskSource, Place
from penstock.acting.values.spaces import ActionMap
from penstock.algo.network import Network
from penstock.algo.spaces import beginning, bounded, bounds, check_spaces, scaled
from penstock.errors import ConfigurationError, EnvironmentFailed, UnknownEnvironment
from penstock.machine import foreign_errors
from penstock.machine.environment_names import split
from penstock.types.spaces import BoxSpace, Encoder, EnvironmentSpec, Leaves

STEPS = 2
"""Steps taken by each environment. The second is the first one from a state that a step produced."""

_SEED = 0
"""Seed of the first environment, with which it has begun if it was reset in search of its masks."""

_COARSE = 0.05
"""Largest step of float32, in units of an action that is not scaled, whose first deviation is 1."""

_DISTANCE = "wrap the environment so that the policy's action is the distance to the bound"

Report = Callable[[str, str], None]
"""Function called before each stage with the stage (import, make, reset, step or close) and the environment's name."""


@dataclass(frozen=True, slots=True)
class Task:
    """The environments of one use, training or evaluation (empty: both), in all variants.

    `makings` has what each variant is made from, of which `instances` environments are made; 2 are enough to compare
    them. Messages name the `use`. `shown` has the numbers of each variant that an observation has; empty: none.
    """

    makings: Sequence[Making]
    instances: int
    use: str = ""
    shown: Sequence[Sequence[float]] = ()


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check: warnings and notices of one line each, the spec of the environments, and offsets.

    `env_id` is the registered id that the given one means. `alone` is whether each environment needs a process of its
    own, because a process can have only one. `agents` is the number of rows that an environment has. `sizes` are those
    to which spaces are padded; None: they are not.
    """

    env_id: str
    warnings: list[str]
    notices: list[str]
    spec: EnvironmentSpec
    offsets: tuple[float, ...] = ()
    alone: bool = False
    agents: int = 1
    sizes: Sizes | None = None


def check(
    tasks: Sequence[Task],
    *,
    alone: bool = False,
    frames: int,
    padding: Literal["auto"] | Sequence[int] | None = None,
    encoders: Mapping[str, Encoder],
    moves: str | None,
    critic_only: Sequence[str] = (),
    widest_range: float,
    offsets: Sequence[float] = (),
    largest_magnitude: float,
    progress: Report,
) -> Checked:
    """Makes, resets and steps every variant of every task, all of the same environment.

    `alone` is whether each environment has a worker process of its own, if there are any. The settings
    `environment.frame_stack`, `environment.pad_spaces` (padding), `environment.largest_magnitude`, `policy.encoders`,
    `policy.moves`, `policy.critic_only`, `policy.widest_range` and `policy.observation_offsets` describe the other
    arguments. `progress` is called before each stage.

    Raises `ConfigurationError`, with the fault, its place and a remedy in one line, if an environment can't be used.
    """
    env_id = tasks[0].makings[0].env_id
    stages = _Stages(progress, env_id)
    with stages.explained():
        stages.begin("import")
        found = import_and_find(env_id, tasks[0].makings[0].imports, tasks[0].makings[0].python)
    values = _Values(widest_range, largest_magnitude)
    first: EnvironmentSpec | None = None
    agents = 1
    sizes = Sizes(*padding) if padding is not None and padding != "auto" else None
    if padding == "auto":
        sizes = _sizes(tasks[0], partial(_Stages, progress, env_id))
    for task in tasks:
        for number, making in enumerate(task.makings):
            stages = _Stages(progress, env_id, _variant(task, number))
            own = wrapping(sizes, task.shown[number] if task.shown else ())
            reports_infos = bool(making.info_metrics)
            making = replace(making, wrappers=[*making.wrappers, *own], workers=1, info_metrics=())
            if alone:
                making = replace(making, vectorization="process", workers=task.instances)
            with stages.explained():
                stages.begin("make")
                try:
                    made = make_environments(making, task.instances, progress=stages)
                except UnevenRows as uneven:
                    made = make_environments(making, uneven.filled(task.instances), progress=stages)
                except ConfigurationError as error:
                    # The refusal of a worker process may mean the same.
                    once = isinstance(error, MadeOnce) or making.vectorization == "process"
                    if alone or not once:
                        raise
                    with contextlib.suppress(ConfigurationError):
                        making = replace(making, vectorization="process", workers=task.instances)
                        made, alone = make_environments(making, task.instances, progress=stages), True
                    if not alone:
                        raise
                notices = [f"{env_id}: {notice}" for notice in _notices(made)]
                agents = max(agents, agents_of(made))
                plain, made = made, with_frames(made, frames)
            first = first or made.spec
            check_spaces(made.spec, encoders, moves, critic_only)
            offsets_of(made.spec, offsets)
            require_same_spaces(made.spec, first, [each.kwargs for each in task.makings], number)
            with stages.explained():
                values.step(made, stages)
            if not reports_infos and (reported := _reported_success(plain)):
                notices.append(f"{env_id}: info has {reported!r}; environment.info_metrics {reported} reports its rate")
            values.warnings += stages.close(made)
    assert first is not None
    if not first.action.has_choice:
        values.warnings.append(f"{env_id} has an action space with nothing to choose, so there is nothing to learn")
    values.warnings += [f"{env_id}: {warning}" for warning in _of_bounds(first, widest_range, largest_magnitude)]
    place, given = split(env_id)
    meant = env_id if not isinstance(found, str) or found == given else f"{place}:{found}" if place else found
    offsets = find_offsets(first, values.rows)
    return Checked(meant, list(dict.fromkeys(values.warnings)), notices, first, offsets, alone, agents, sizes)


def _sizes(task: Task, stages_of: Callable[[str], "_Stages"]) -> Sizes:
    """Makes an environment of each variant; returns the sizes that fit all. Raises `ConfigurationError`."""
    variants, specs = [each.kwargs for each in task.makings], []
    for number, making in enumerate(task.makings):
        stages = stages_of(_variant(task, number))
        with stages.explained():
            stages.begin("make")
            made = make_environments(making, 1, progress=stages)
            specs.append((variant_name(variants, number), made.spec))
            stages.begin("close")
            made.close()
    return common_sizes(specs)


def _of_bounds(spec: EnvironmentSpec, widest_range: float, largest_magnitude: float) -> Iterator[str]:
    """Returns how bounds of actions are taken that are probably not meant, or beside which float32 is too coarse.

    Raises `ConfigurationError` if all actions between the bounds are above the largest magnitude.
    """
    for leaf in spec.action.leaves:
        if not isinstance(leaf.space, BoxSpace):
            continue
        (low, high), is_scaled = bounds(leaf.space), scaled(leaf.space, widest_range)
        first = beginning(leaf.space, widest_range)
        if (far := np.abs(first) > largest_magnitude).any():
            element = int(far.argmax())
            raise ConfigurationError(
                f"{spec.id} has actions{leaf.place} whose element {element} is between {low[element]:g} and"
                f" {high[element]:g}, beyond environment.largest_magnitude, which is {largest_magnitude:g}; {_DISTANCE}"
            )
        wide = bounded(leaf.space) & (high / 2.0 - low / 2.0 > widest_range)
        for found, text in (
            (
                wide & ~is_scaled,
                "is not scaled to its bounds {low:g} and {high:g}, which are so wide that they probably mean none, and"
                " begins near {first:g}; raise policy.widest_range (now {widest:g}) if all of the range is of use",
            ),
            (
                wide & is_scaled,
                "is scaled to its bounds {low:g} and {high:g}; if they mean none, make them infinite in action_space",
            ),
            (
                ~is_scaled & (np.spacing(np.abs(first).astype(np.float32)) > _COARSE),
                f"begins at {{first:g}}, beside its bound, where float32 can't tell actions apart; {_DISTANCE}",
            ),
        ):
            if found.any():
                element = int(found.argmax())
                more = f" (and {found.sum() - 1} others)" if found.sum() > 1 else ""
                values = {"low": low[element], "high": high[element], "first": first[element], "widest": widest_range}
                yield f"element {element} of the action{leaf.place}{more} {text.format(**values)}"


class _Stages(Progress):
    """Progress that reports each call of an environment before it begins, and explains its exceptions."""

    def __init__(self, report: Report, env_id: str, variant: str = "") -> None:
        """Names the environment in messages by its id and, if there are several, by its variant and use."""
        self._report, self._variant, self.name = report, variant, f"{env_id} {variant}".strip()
        super().__init__()

    @property
    def environment(self) -> int | None:
        """Index of the environment that is being called."""
        return self._environment

    @environment.setter
    def environment(self, index: int | None) -> None:
        self._environment = index
        if self.doing:
            self._report(self.doing, self.name)

    def begin(self, stage: str) -> None:
        """Reports the beginning of a stage."""
        self.doing = stage
        self.environment = None

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turns any exception of an environment, SystemExit and KeyboardInterrupt included, into a one-line error."""
        try:
            yield
        except (ConfigurationError, EnvironmentFailed) as error:
            if isinstance(error, ConfigurationError) and (isinstance(error, UnknownEnvironment) or not self._variant):
                raise
            what = error.what if isinstance(error, EnvironmentFailed) else str(error)
            raise ConfigurationError(f"environment {self._variant}: {what}" if self._variant else what) from error
        except BaseException as error:
            raise ConfigurationError(
                f"the environment {self.name!r} failed in {self.doing}: {foreign_errors.explain(error)};"
                f" {faults.remedy_for(error)}"
            ) from error

    def close(self, made: Environments) -> Iterator[str]:
        """Closes environments; yields a warning if that fails, because training is possible all the same."""
        try:
            with self.explained():
                self.begin("close")
                made.close()
        except ConfigurationError as error:
            yield str(error)


class _Values:
    """The values of the first steps of environments.

    Attributes:
        warnings: Warnings about them, one line each.
        rows: Observations with numbers of float64, for `find_offsets`, which reads these alone.
    """

    def __init__(self, widest_range: float, largest_magnitude: float) -> None:
        self._widest_range, self._largest_magnitude = widest_range, largest_magnitude
        self.warnings: list[str] = []
        self.rows: list[Leaves] = []

    def step(self, made: Environments, stages: _Stages) -> None:
        """Resets environments and takes random legal steps in them. Raises `EnvironmentFailed`."""
        spec, random = made.spec, np.random.default_rng(_SEED)
        source = MaskSource(Place.INFO, spec.action)
        action_map = ActionMap(spec.action, Network(widest_range=self._widest_range))
        stages.begin("reset")
        made.reset(range(_SEED, _SEED + made.count))
        warnings = self._look(made, np.zeros(0, np.float32))
        for _ in range(STEPS):
            scores = 1.0 + random.random((made.count, source.bits))
            chosen = source.highest(scores if made.action_mask is None else scores * made.action_mask)
            action = (
                random.standard_normal(leaf.shape, np.float32) if leaf.dtype.kind == "f" else leaf for leaf in chosen
            )
            stages.begin("step")
            outcome = made.step(action_map(tuple(action)))
            for lost in outcome.lost.values():
                raise lost
            warnings += self._look(made, outcome.reward)
        warnings += [f"step returned {converted}" for converted in stages.converted]
        self.warnings += [f"{stages.name}: {warning}" for warning in warnings]

    def _look(self, made: Environments, reward: NDArray[np.float32]) -> list[str]:
        """Keeps the observations' rows; returns warnings about them and rewards. Raises `EnvironmentFailed`."""
        spec, seen = made.spec, made.observation
        leaves = zip(seen, spec.observation.leaves, strict=True)
        faults.require_usable(
            [*(("an observation with", each, leaf.place) for each, leaf in leaves), ("a reward of", reward, "")],
            largest=self._largest_magnitude,
            where="in its first steps",
            env_id=spec.id,
        )
        if any(each.dtype == np.float64 for each in seen):
            # The next step overwrites them.
            self.rows += [tuple(leaf.copy() for leaf in row) for row in zip(*seen, strict=True)]
        return [*first_values.of_observation(spec, seen), *first_values.of_reward(reward)]


def _notices(made: Environments) -> Sequence[str]:
    """Returns a line for each part of the environments that is used or left out."""
    if isinstance(made, SingleEnvironments | ProcessEnvironments | AgentEnvironments):
        return made.notices
    return [f"action masks of {made.spec.mask_bits} bits"] if made.spec.mask_bits else []


def _reported_success(made: Environments) -> str:
    """Returns the key by which the infos tell whether an episode has reached its goal; empty without one."""
    infos = made.infos if isinstance(made, SingleEnvironments) else []
    return next((key for key in SUCCESS for info in infos if isinstance(info, Mapping) and key in info), "")


def _variant(task: Task, number: int) -> str:
    variant = variant_name([each.kwargs for each in task.makings], number) if len(task.makings) > 1 else ""
    return " ".join(filter(None, [variant, f"for {task.use}" if task.use else ""]))
