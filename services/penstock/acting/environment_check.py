"""Checks the environments of a run before it starts: each is made, reset and stepped twice.

The check must run in its own process (`apps.environment_check`), because an environment may hang, end its process, or
change signal handlers and the working directory. This module does not import torch.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from penstock import foreign_errors
from penstock.acting import first_values, masks
from penstock.acting.environments import Environments, check_arguments, make_environments
from penstock.acting.frames import with_frames
from penstock.acting.leaves import ActionForm, flatten, left_out
from penstock.acting.masks import MaskSource, Place
from penstock.acting.offsets import find_offsets, offsets_of
from penstock.acting.refusals import can_not_make
from penstock.acting.registry import find, make
from penstock.acting.returned_values import array_of, number_of
from penstock.acting.single_environments import SingleEnvironments
from penstock.acting.spaces import ActionMap, describe
from penstock.acting.variants import require_same_spaces, variant_name
from penstock.algo.network import Network
from penstock.algo.spaces import beginning, bounded, bounds, check_spaces, scaled
from penstock.environment_names import split
from penstock.errors import ConfigurationError
from penstock.module_imports import import_modules
from penstock.types.networks import Encoder
from penstock.types.spaces import BoxSpace, EnvironmentSpec

STEPS = 2
"""Steps taken by each environment. The second is the first one from a state that a step produced."""

_SEED = 1

_COARSE = 0.05
"""Largest step of float32, in units of an action that is not scaled, whose first deviation is 1."""

_DISTANCE = "wrap the environment so that the policy's action is the distance to the bound"

Progress = Callable[[str, str], None]
"""Function called before each stage with the stage (import, constructor, spaces, reset, mask, step or close) and the
environment's name."""


@dataclass(frozen=True, slots=True)
class Task:
    """The environments of one use, training or evaluation (empty: both), in all variants.

    `variants` has all arguments of each variant, of which `instances` environments are made; 2 are enough to compare
    them. Messages name the `use`.
    """

    variants: Sequence[Mapping[str, Any]]
    instances: int
    use: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check: warnings and notices of one line each, the spec of the environments, and offsets.

    `env_id` is the registered id that the given one means.
    """

    env_id: str
    warnings: list[str]
    notices: list[str]
    spec: EnvironmentSpec
    offsets: tuple[float, ...] = ()


def check(
    env_id: str,
    tasks: Sequence[Task],
    *,
    imports: Sequence[str],
    vectorization: str,
    frames: int,
    use_masks: bool,
    encoders: Mapping[str, Encoder],
    moves: str | None,
    widest_range: float,
    offsets: Sequence[float] = (),
    largest_magnitude: float,
    progress: Progress,
) -> Checked:
    """Makes, resets and steps every variant of every task.

    The arguments are those of `EnvironmentVariants`, `policy.encoders`, `policy.moves`, `policy.widest_range`,
    `policy.observation_offsets` and `environment.largest_magnitude`. `progress` is called before each stage.

    Raises `ConfigurationError`, with the fault, its place and a remedy in one line, if an environment can't be used.
    """
    progress("import", env_id)
    with _named(env_id, "import"):
        import_modules(imports)
        found = find(env_id)
    warnings: list[str] = []
    rows: list[tuple[NDArray[np.generic], ...]] = []
    first: EnvironmentSpec | None = None
    for task in tasks:
        for number, arguments in enumerate(task.variants):
            one = _Check(_name(env_id, task, number), progress, warnings, rows, largest_magnitude, use_masks=use_masks)
            if vectorization == "native":
                spec = one.native(env_id, arguments, task.instances, frames)
            else:
                spec = one.single(env_id, arguments, task.instances, frames)
            check_spaces(spec, encoders, moves)
            offsets_of(spec, offsets)
            if first is not None:
                require_same_spaces(spec, first, task.variants, number)
            first = first or spec
            if not spec.action.has_choice:
                warnings.append(f"{env_id} has an action space with nothing to choose, so there is nothing to learn")
    assert first is not None
    notices = [f"{env_id}: {notice}" for notice in one.notices]
    warnings += [f"{env_id}: {warning}" for warning in _of_bounds(first, widest_range, largest_magnitude)]
    place, given = split(env_id)
    meant = env_id if not isinstance(found, str) or found == given else f"{place}:{found}" if place else found
    return Checked(meant, list(dict.fromkeys(warnings)), notices, first, find_offsets(first, rows))


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


class _Check:
    """The check of one variant.

    Attributes:
        notices: What is used or left out of the environment, one line each.
    """

    def __init__(
        self,
        name: str,
        progress: Progress,
        warnings: list[str],
        rows: list[tuple[NDArray[np.generic], ...]],
        largest_magnitude: float,
        *,
        use_masks: bool,
    ) -> None:
        """Adds warnings, and the observations as rows of leaves, to the lists."""
        self._name, self._progress, self._warnings, self._use_masks = name, progress, warnings, use_masks
        self._rows = rows
        self._largest_magnitude = largest_magnitude
        self.notices: list[str] = []

    def single(self, env_id: str, arguments: Mapping[str, Any], instances: int, frames: int) -> EnvironmentSpec:
        """Checks single environments and the values they return; returns their spec."""
        made: list[gymnasium.Env[Any, Any]] = []
        found = find(env_id)
        for _ in range(instances):
            self._progress("constructor", self._name)
            try:
                made.append(make(found, arguments))
            except BaseException as error:
                raise can_not_make(self._name, error, found, arguments) from error
            check_arguments(made[-1], env_id, arguments)
        with self._stage("spaces"):
            spec = self._spec_of(env_id, made, frames)
        source: MaskSource | None = None
        for position, env in enumerate(made):
            state = self._reset(env)
            self._keep("reset", spec, state[0])
            if position == 0 and self._use_masks:
                source = masks.find(env, env.observation_space, spec.action, functools.partial(dict, state[1]))
            env.action_space.seed(_SEED)
            for _ in range(STEPS):
                state = self._step(env, spec, source, state)
        for env in made:
            self._close(env.close)
        self._note(made[0].observation_space, source)
        return dataclasses.replace(spec, mask_bits=source.bits if source else 0)

    def _step(
        self, env: gymnasium.Env[Any, Any], spec: EnvironmentSpec, source: MaskSource | None, state: tuple[Any, Any]
    ) -> tuple[Any, Any]:
        """Takes a legal step from an observation and its info; returns those after it, in a new episode if it ended."""
        action = env.action_space.sample()
        if source is not None:
            legal = ActionMap(spec.action, Network())(source.first_legal(self._mask(env, source, state)))
            action = ActionForm(spec.action, spec.action_types).rows(legal)[0]
        with self._stage("step"):
            result = env.step(action)
        values = first_values.of_step(self._name, result, env.observation_space)
        self._warnings += values.warnings
        self._keep("step", spec, result[0])
        first_values.check_magnitude(self._name, "step", number_of(result[1]), self._largest_magnitude)
        return self._reset(env) if values.ended else (result[0], result[4])

    def _keep(self, stage: str, spec: EnvironmentSpec, observation: Any) -> None:
        leaves = tuple(map(array_of, flatten(spec.observation, observation)))
        for leaf in leaves:
            first_values.check_magnitude(self._name, stage, leaf, self._largest_magnitude)
        self._keep_row(leaves)

    def _keep_row(self, leaves: tuple[NDArray[np.generic], ...]) -> None:
        """Keeps an observation for `find_offsets`, which reads numbers of float64 alone."""
        if any(leaf.dtype == np.float64 for leaf in leaves):
            # An environment may change its array.
            self._rows.append(tuple(leaf.copy() for leaf in leaves))

    def _mask(self, env: gymnasium.Env[Any, Any], source: MaskSource, state: tuple[Any, Any]) -> NDArray[np.bool_]:
        """Returns the mask, <bool>[1, bits], of an observation and its info."""
        with self._stage("mask"):
            mask = source.reader(env)(*state)
        try:
            source.check(mask)
        except ConfigurationError as error:
            raise ConfigurationError(f"the environment {self._name!r} returned {error}") from None
        return source.row(mask)[None]

    def _note(self, observation: gymnasium.Space[Any], source: MaskSource | None) -> None:
        if source is not None:
            self.notices.append(f"action masks from {source.place.value}, {source.bits} bits")
        if texts := left_out(observation):
            self.notices.append(f"the policy does not see {', '.join(texts)}, because it can't read text")

    def native(self, env_id: str, arguments: Mapping[str, Any], instances: int, frames: int) -> EnvironmentSpec:
        """Checks the environment's own vectorised form through the adapter that actors use; returns its spec."""
        with self._stage("constructor"):
            made = with_frames(
                make_environments(
                    env_id, instances, kwargs=arguments, vectorization="native", use_masks=self._use_masks
                ),
                frames,
            )
        spec = made.spec
        actions, source = ActionMap(spec.action, Network()), MaskSource(Place.INFO, spec.action)
        with self._stage("reset"):
            made.reset([_SEED + number for number in range(instances)])
        self._check_rows("reset", made)
        every = np.ones((instances, source.bits), np.bool_)
        for _ in range(STEPS):
            legal = source.first_legal(every if made.action_mask is None else made.action_mask)
            with self._stage("step"):
                outcome = made.step(actions(legal))
            self._check_rows("step", made)
            first_values.check_rows(self._name, "step", "a reward", outcome.reward)
            first_values.check_magnitude(self._name, "step", outcome.reward, self._largest_magnitude)
        if converted := made.progress.converted:
            self._warnings.append(f"{self._name}: step returned {converted}")
        self._close(made.close)
        if spec.mask_bits:
            self.notices.append(f"action masks of {spec.mask_bits} bits")
        return spec

    def _check_rows(self, stage: str, made: Environments) -> None:
        for leaf in made.observation:
            first_values.check_rows(self._name, stage, "an observation", leaf)
            first_values.check_magnitude(self._name, stage, leaf, self._largest_magnitude)
        for row in zip(*made.observation, strict=True):
            self._keep_row(row)

    def _spec_of(self, env_id: str, made: Sequence[gymnasium.Env[Any, Any]], frames: int) -> EnvironmentSpec:
        for env in made[1:]:
            for role in ("observation_space", "action_space"):
                mine, others = getattr(env, role), getattr(made[0], role)
                if mine != others:
                    differ = " and ".join(foreign_errors.shortened(str(space)) for space in (others, mine))
                    raise ConfigurationError(
                        f"{self._name}: two environments made with the same arguments differ in their {role}, {differ};"
                        " one policy needs the same spaces everywhere, so they must depend only on the arguments"
                    )
        spec = describe(env_id, made[0].observation_space, made[0].action_space)
        return with_frames(SingleEnvironments(made[:1], spec), frames).spec

    def _reset(self, env: gymnasium.Env[Any, Any]) -> tuple[Any, Any]:
        """Returns the first observation and its info."""
        with self._stage("reset"):
            result = env.reset(seed=_SEED)
        self._warnings += first_values.of_reset(self._name, result, env.observation_space).warnings
        return result

    def _close(self, close: Callable[[], object]) -> None:
        try:
            with self._stage("close"):
                close()
        except ConfigurationError as error:
            # Training is possible even if close fails.
            self._warnings.append(str(error))

    @contextlib.contextmanager
    def _stage(self, stage: str) -> Iterator[None]:
        self._progress(stage, self._name)
        with _named(self._name, stage):
            yield


@contextlib.contextmanager
def _named(name: str, stage: str) -> Iterator[None]:
    """Turns any exception of an environment, SystemExit and KeyboardInterrupt included, into a one-line error."""
    try:
        yield
    except ConfigurationError:
        raise
    except BaseException as error:
        raise ConfigurationError(
            f"the environment {name!r} failed in {stage}: {foreign_errors.explain(error)}; {_remedy(error)}"
        ) from error


def _remedy(error: BaseException) -> str:
    # Python's texts for a call with other arguments, and for a result of another length, say something about reset and
    # step only if no line of the user raised them.
    called = not foreign_errors.place_of(error)
    if called and isinstance(error, TypeError) and "argument" in str(error):
        return "reset must take the keywords seed and options, and step one action"
    if called and isinstance(error, ValueError) and "to unpack" in str(error):
        return "step must return observation, reward, terminated, truncated and info, and reset observation and info"
    if isinstance(error, SystemExit):
        return "an environment must raise an exception, not end its process"
    return "correct the environment, or choose another by --env-id"


def _name(env_id: str, task: Task, number: int) -> str:
    variant = variant_name(task.variants, number) if len(task.variants) > 1 else ""
    return " ".join(filter(None, [env_id, variant, f"for {task.use}" if task.use else ""]))
