"""Runs as objects: `penstock.Run`, which reads a run's folder, and `penstock.TrainedRun`, the result of `train`.

The functions that find runs and play episodes with their policies are here too.

Nothing is loaded before it is used: policies need torch, films moviepy and curves matplotlib.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.machine import extras
from penstock.runs.evaluation import Evaluation
from penstock.runs.folder import RunFolder
from penstock.runs.known import RUNS, known_runs, run_named
from penstock.runs.metrics import Metrics, load_metrics
from penstock.runs.summary import Summary
from penstock.types.variants import RunVariant, VariantChange

if TYPE_CHECKING:
    from penstock.acting.policies.trained import TrainedPolicy
    from penstock.apps.episodes import Playable


class Run(os.PathLike[str]):
    """A run in its folder, finished or still active. It stands for its path where functions take a run.

    For example::

        run = penstock.Run("runs/first")             # or the newest one: penstock.list_runs()[0]
        run.metrics().evaluation["return_mean"]      # <float64>[N], as the run has recorded them
        print(run.evaluate(episodes=20, seed=1))
        film, curve = run.film(), run.plot("curve.svg")
        action, state = run.policy.predict(observation)

    The folder is read at each call. A run whose settings name code of yours (an environment in a module or file, a
    network) needs `trust_code=True` for its policy and its environment; a run that `penstock.train` returned does not,
    because you have named that code.
    """

    # Of a run that `train` has returned, whose code its caller has named.
    _trust_code = True

    def __init__(self, run: str | os.PathLike[str], *, trust_code: bool = False) -> None:
        """Finds a run.

        Args:
            run: Folder of the run, or its name in runs/.
            trust_code: Whether to import the modules and files that the run names (docs/security.md).

        Raises:
            ConfigurationError: There is no run; the message names a similar one.
        """
        root = _path_of(run)
        if not RunFolder(root).config.exists():
            raise ConfigurationError(
                f"there is no run in {root}, which has no config.toml; penstock.list_runs() returns the runs in {RUNS}"
            )
        self._root, self._trust_code = root, trust_code

    @property
    def run_dir(self) -> str:
        """Folder of the run."""
        return str(self._root)

    @property
    def config(self) -> Config:
        """The run's configuration, as `Config.load` reads it."""
        return Config.load(self.run_dir, trust_code=self._trust_code)

    @property
    def summary(self) -> Summary:
        """The results of the run. Raises `ConfigurationError` if it is active or was killed, and so has none yet."""
        file = RunFolder(Path(self.run_dir)).summary
        if not file.exists():
            raise ConfigurationError(
                f"{self.run_dir} has no summary, because the run has not ended; metrics() reads its records, and"
                " penstock.train(resume=True) continues an interrupted run"
            )
        return Summary.read(file)

    @functools.cached_property
    def policy(self) -> "TrainedPolicy":
        """The policy of the best checkpoint, else of the newest. It is loaded once; `load_policy(run)` loads it anew.

        Raises `ConfigurationError` as `penstock.load_policy`, such as for a run without a checkpoint yet.
        """
        from penstock.acting.policies.trained import load_policy

        return load_policy(self.run_dir, trust_code=self._trust_code)

    def evaluate(
        self,
        episodes: int = 20,
        *,
        seed: int | None = None,
        deterministic: bool = True,
        variant: int | None = None,
    ) -> Evaluation:
        """Plays episodes with the policy of the best checkpoint. Arguments and errors as for `penstock.evaluate`."""
        return evaluate(
            self,
            episodes,
            seed=seed,
            deterministic=deterministic,
            variant=variant,
            trust_code=self._trust_code,
        )

    def film(self, path: str | os.PathLike[str] | None = None, *, seed: int | None = None, variant: int = 0) -> Path:
        """Films an episode with the policy of the best checkpoint, and returns the path of the film.

        The film shows what the environment renders, or the images on which the policy acts, and has at most 10,000
        pictures.

        Args:
            path: File to write, such as "cartpole.mp4", or a folder; None: in `videos/` of the run's folder.
            seed: Seed of the episode, from 0 to 2^63 - 1; None: the run's.
            variant: Number of the environment variant.

        Raises:
            ConfigurationError: There is no checkpoint, the environment can't be rendered, moviepy is not installed, or
                the file can't be written.
        """
        extras.require("moviepy", "a film")
        place = None if path is None else Path(path)
        if place is not None and not place.parent.is_dir():
            raise ConfigurationError(f"{place.parent}, the folder of the film, does not exist; create it")
        from penstock.apps.episodes import chosen_seed, chosen_variants, kwargs_of, videos_of
        from penstock.cli.film import film

        found = _playable(self.run_dir, None, None, trust_code=self._trust_code)
        # Number 0 is also the environment of a run without variants.
        kwargs = kwargs_of(found, chosen_variants(found, variant or None)[0])
        begin = chosen_seed(found, seed)
        return film(found.policy, found.environment, kwargs, folder=videos_of(found), seed=begin, output=place)

    def plot(self, path: str | os.PathLike[str] | None = None, *, x: str = "steps", smooth: int = 1) -> Path:
        """Draws the learning curves of the run, as `penstock plot`, and returns the path of the picture.

        Args:
            path: File to write: .png, .svg or .pdf; None: `learning_curve.png` in the run's folder.
            x: Horizontal axis: "steps" of the environment, or "seconds" of training.
            smooth: Number of records of training of which each point is the mean.

        Raises:
            ConfigurationError: There are no records yet, an argument is wrong, the file can't be written, or matplotlib
                is not installed.
        """
        from penstock.local.learning_curves import draw

        folder = RunFolder(Path(self.run_dir))
        output = folder.learning_curve if path is None else Path(path)
        draw([folder], output, x, smooth)
        return output

    def list_variants(self) -> list[RunVariant]:
        """Returns the variants that the active run has had, by number (`environment.vary`).

        Raises `ConfigurationError` if the run is not active, or its actors don't play variants in turn.
        """
        return self._change()

    def add_variants(self, *variants: Mapping[str, object]) -> list[int]:
        """Adds variants to the active run, with these arguments; returns their numbers.

        For example::

            variants = {"variants": [{"g": 8.0}, {"g": 9.0}], "vary": "episodes"}
            for record in penstock.stream("Pendulum-v1", run_dir="first", total_steps=50_000, environment=variants):
                if record["kind"] == "evaluation":
                    penstock.Run("first").add_variants({"g": 12.0})

        They may have the arguments of `environment.variants`, with numbers, lists of numbers or values that appear
        there. Each gets as many steps as each other one from now on, and the policy is trained in all of them.

        Raises `ConfigurationError` as `list_variants`, or if a variant can't have these arguments.
        """
        known = self._change(add=variants)
        return [each.number for each in known[len(known) - len(variants) :]]

    def retire_variants(self, *numbers: int) -> None:
        """Retires variants of the active run, whose episodes in progress go on.

        Raises `ConfigurationError` as `list_variants`, or if one is not played or none would be left.
        """
        self._change(retire=numbers)

    def _change(self, add: Sequence[Mapping[str, object]] = (), retire: Sequence[int] = ()) -> list[RunVariant]:
        from penstock.cli.operator import change_variants

        return change_variants(RunFolder(Path(self.run_dir)), VariantChange(add, retire))

    def metrics(self) -> Metrics:
        """Reads the metrics of the run, as `penstock.load_metrics`. Raises its errors."""
        return load_metrics(self.run_dir)

    def __fspath__(self) -> str:
        return self.run_dir

    def __repr__(self) -> str:
        return f"Run({self.run_dir!r})"


class TrainedRun(Summary, Run):
    """A run that `penstock.train` has trained: the attributes of its `Summary`, and the methods of `Run`.

    For example::

        run = penstock.train("CartPole-v1", total_steps=50_000)
        print(run.verdict, run.evaluation.return_mean, run.evaluate(episodes=20))

    `print` shows the result, and so does a notebook, with the learning curve.
    """

    @classmethod
    def of(cls, summary: Summary) -> Self:
        """Returns the run of this summary."""
        return cls(**{field.name: getattr(summary, field.name) for field in dataclasses.fields(Summary)})


def list_runs(folder: str | os.PathLike[str] = str(RUNS)) -> list[Run]:
    """Returns the runs below a folder, the newest first: the one that was started or resumed last.

    For example::

        newest = penstock.list_runs()[0]
        print(newest.run_dir, newest.summary.verdict)

    Args:
        folder: Folder that contains the folders of runs. Without runs, or if it does not exist, the list is empty.
    """
    return [Run(each.root) for each in known_runs(Path(folder))]


def evaluate(
    run: str | os.PathLike[str],
    episodes: int = 20,
    *,
    seed: int | None = None,
    deterministic: bool = True,
    variant: int | None = None,
    env_id: str | None = None,
    module: str | type | None = None,
    trust_code: bool = False,
) -> Evaluation:
    """Plays episodes with the policy of a run or of a checkpoint, as `penstock evaluate`, and returns their returns.

    For example::

        outcome = penstock.evaluate("runs/first", episodes=20, seed=1)
        print(outcome.return_mean, outcome.returns)

    Equal seeds give equal episodes, unless an environment draws from the generators of the whole process. All episodes
    are played at once, each in an environment of its own.

    Args:
        run: A run, its folder, its name in runs/, or a checkpoint file.
        episodes: Number of episodes, from 1. They alternate between the run's environment variants.
        seed: Seed of the episodes, from 0 to 2^63 - 1; None: the run's.
        deterministic: Whether to take the most likely actions instead of sampled ones.
        variant: Number of the only environment variant to play; None: all.
        env_id: Environment to play, whose spaces must be the same; None: the run's. A file outside of a run needs it.
        module: Module of the policy, as for `penstock.load_policy`.
        trust_code: Whether to import the code that the run names.

    Raises:
        ForeignCode: The run alone names code. Nothing was imported.
        ConfigurationError: There is no checkpoint, the environment can't be made or has other spaces, or an argument is
            out of range.
        EnvironmentFailed: The environment failed while it was played.
    """
    from penstock.apps.episodes import play

    found = _playable(run, env_id, module, trust_code=trust_code)
    return play(found, episodes, seed=seed, deterministic=deterministic, variant=variant)


def _playable(
    run: str | os.PathLike[str], env_id: str | None, module: str | type | None, *, trust_code: bool
) -> "Playable":
    from penstock.apps.episodes import playable

    return playable(_path_of(run), env_id=env_id, module=module, trust_code=trust_code)


def _path_of(run: str | os.PathLike[str]) -> Path:
    try:
        return run_named(os.fspath(run))
    except TypeError:
        raise ConfigurationError(
            f"expected a run: its folder, its name in {RUNS} or a checkpoint file; got {type(run).__name__}"
        ) from None
