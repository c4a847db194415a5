"""The section [environment]."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from penstock.config.code_names import EnvironmentId
from penstock.config.setting_types import Arguments, InfoKeys, Interpreter, Modules, PaddedSizes, Tables
from penstock.config.settings.section import Section
from penstock.config.variant_numbers import numbers_of
from penstock.config.wrapper_settings import Wrappers
from penstock.errors import ConfigurationError
from penstock.machine.environment_names import short
from penstock.types.variants import named

LARGEST_FLOAT32 = 3.4e38


class EnvironmentConfig(Section):
    """[environment] The Gymnasium environment."""

    id: EnvironmentId = "CartPole-v1"
    """Registered Gymnasium id; package:Id-v0 to first import the package that registers it; or module:Name or
    file.py:Name for a class or function, called with kwargs; or a name without a version that an installed package
    registers (docs/extensions.md). A relative path is made absolute."""
    kwargs: Arguments = {}
    """Arguments for gymnasium.make: numbers, booleans, text, None, and lists, tuples or tables of these; as an option
    name=value,name=value, with values as in Python or JSON. In a file, None is written "None", and what TOML does not
    have as goal = { python_literal = "(1, 2)" }."""
    variants: Tables = ()
    """Tables of arguments that override kwargs; one policy trains in all of them. Written as [[environment.variants]]
    in a file and as a JSON list in an option. An empty table is the environment with kwargs alone. The episodes of an
    evaluation alternate between them. Empty: one environment without variants."""
    vary: Literal["auto", "actors", "episodes"] = "auto"
    """What differs by variant. actors: the actor in slot s collects in variant s modulo the number of variants.
    episodes: each episode is of the variant with the fewest steps so far, so that few actors collect in many variants,
    and `penstock variants` adds and retires variants during the run. auto: episodes if there are more variants than
    actors."""
    pad_spaces: PaddedSizes = None
    """Sizes of an observation and of an action to which those of all variants are padded, so that robots of different
    shapes share one policy: rows of numbers with zeros, whose last actions have no effect, and Discrete actions by
    masks. 0 leaves a space as it is. auto: the sizes of the largest variants, which the check before a run finds and
    individually started services need as numbers. none: all variants have the same spaces."""
    show_variant: bool = False
    """Whether an observation has the arguments in which the variants differ, so that the policy and the critic know the
    variant: numbers as they are, and other values as one 1 among zeros."""
    imports: Modules = ()
    """Modules, or paths of .py files, to import before the environment is made, because they register it."""
    python: Interpreter | None = None
    """Path of another Python interpreter, such as /path/to/venv/bin/python, whose packages have the environment: Gym
    0.21 on Python 3.9, a simulator, or ROS. Each environment has a process of that Python, from 3.7 on, which needs
    NumPy and the environment's packages, not Penstock. Unset: the environment is made with Penstock's own packages."""
    wrappers: Wrappers = ()
    """Gymnasium wrappers around each environment, applied in this order: tables with a name and the arguments of the
    wrapper, written as [[environment.wrappers]] in a file. The name is a class of gymnasium.wrappers, such as
    FlattenObservation, or package.module:Class or file.py:Class. As an option
    FlattenObservation,TimeLimit(max_episode_steps=100)."""
    vectorization: Literal["auto", "sync", "process", "native"] = "auto"
    """Form of the vector environment. sync: single environments, stepped one after another, which is fastest where a
    step takes less than about 0.1 ms. process: single environments in worker processes, which step them at the same
    time; chosen in place of sync where an environment can be made only once in a process. native: the environment's
    own vectorised form. auto: native for CartPole-v1, Pendulum-v1 and Acrobot-v1, whose vectorised form takes the same
    steps as the single one in less time, for tasks of EnvPool, and for classes of vector environments; sync for all
    others, and with wrappers."""
    workers: PositiveInt | None = None
    """Worker processes of each actor and evaluator with vectorization process, at most one for each environment. Unset:
    `penstock train` divides the cores among the actors, and an individually started service uses all cores. A worker
    takes about 30 MB and what its environments need."""
    ready_share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of an actor's environments that complete a window, with vectorization process. Below 1, the actor acts for
    the environments that have answered, and slow ones add the steps that they have taken. Each environment then has a
    worker process, unless workers is set. 1: every environment takes every step."""
    frame_stack: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of most recent frames that the policy sees at once, stacked along the first axis; each is sent and stored
    only once. 4 is usual for Atari."""
    training_kwargs: Arguments = {}
    """Arguments that override kwargs for the actors only. Use them for changes to the task that ease learning, such as
    clipped rewards or an episode's end at every lost life. Evaluations do not use them."""
    action_masks: bool = True
    """Whether to use the action masks that the environment offers: an `action_mask` in its Dict observation or in info,
    or a method action_masks(). false: every action is legal for the policy."""
    info_metrics: InfoKeys = ()
    """Keys of the environment's infos, such as success or final.distance in a nested info, whose numbers and truth
    values are reported with the return of each episode: the last value in the episode, and the mean over episodes,
    which is a rate for truth values. At most 16. Empty: infos are not read, which is fastest."""
    largest_magnitude: Annotated[float, Field(ge=1.0, le=LARGEST_FLOAT32)] = 1e15
    """Largest magnitude of a reward, an observation or another number in a window. An actor drops a window beyond it,
    as one with NaN, and the replay service refuses it. 1e15 is also the largest value that the running normalisation
    takes, and no known environment reaches it; float32 then has steps of 1e8."""
    check_timeout_s: PositiveFloat = 60.0
    """Seconds that each of import, constructor, reset and step may take in the check before a run. Long enough for a
    simulator that compiles or loads a large scene; a longer wait usually means that it hangs."""

    @property
    def short_name(self) -> str:
        """The id without the folder of its file, for display."""
        return short(self.id)

    @property
    def variant_kwargs(self) -> tuple[Arguments, ...]:
        """All arguments of each variant; without variants, the arguments of the one environment."""
        return tuple({**self.kwargs, **variant} for variant in self.variants) or (self.kwargs,)

    @property
    def training_variants(self) -> tuple[Arguments, ...]:
        """All arguments of each variant, as actors use them."""
        return tuple({**variant, **self.training_kwargs} for variant in self.variant_kwargs)

    @property
    def shown_variants(self) -> tuple[Arguments, ...]:
        """All arguments of each variant whose differences an observation has; none unless `show_variant`."""
        return self.variant_kwargs if self.show_variant else ()

    def shown(self, arguments: Mapping[str, Any]) -> tuple[float, ...]:
        """Returns the numbers that an observation has of a variant with these arguments, in training or evaluations.

        Raises `ConfigurationError` if the variants have none, or not these arguments.
        """
        if not (variants := self.shown_variants):
            return ()
        if not (numbers := numbers_of(arguments, variants)):
            raise ConfigurationError(
                "environment.show_variant needs environment.variants with different arguments; give them, or set it to"
                " false"
            )
        return numbers

    @property
    def variant_names(self) -> tuple[str, ...]:
        """The arguments that distinguish each variant, as text for display; empty if there are no variants."""
        return tuple(map(named, self.variants))
