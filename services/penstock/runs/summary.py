"""The results of a run: `summary.json`, and the return value of `penstock.train`."""

import base64
import dataclasses
import html
import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from penstock.config import RunConfig
from penstock.config.foreign_code import code_in
from penstock.config.recorded import ENVIRONMENT, read_settings
from penstock.errors import ConfigurationError
from penstock.machine import installation
from penstock.machine.files import write_json
from penstock.runs.folder import RunFolder
from penstock.runs.metrics import Metrics, load_metrics, return_text
from penstock.types.evaluation import InfoMetric
from penstock.types.extents import Extent, RunLimit
from penstock.types.records import plain, record_of
from penstock.types.statistics import CoordinatorStatistics
from penstock.types.status import RESUMABLE, Stopped

CLOSING_LABEL = 7
"""Columns of the labels at the end of a run; a command there fits into 80 columns with the usual names of runs."""


@dataclass(frozen=True, slots=True)
class EvaluationOutcome:
    """Statistics of evaluation returns. `unfinished` episodes were cut and count with their returns until then.

    `info_metrics` are the numbers of the infos.
    """

    episodes: int
    return_mean: float
    return_std: float
    unfinished: int = 0
    info_metrics: tuple[InfoMetric, ...] = ()

    def text(self, kind: str = "") -> str:
        """Returns mean and standard deviation over these episodes of a `kind`, such as "new "."""
        return f"{return_text(self.return_mean, self.return_std)} over {self.episodes} {kind}episodes"


@dataclass(frozen=True, slots=True)
class VariantOutcome:
    """The results in one environment variant.

    Attributes:
        arguments: Arguments that distinguish the variant, as text for display.
        episodes: Training episodes of this session that ended in the variant.
        return_mean: Mean return of the last 100 of these episodes; None if there were none.
        evaluation: Evaluation of the best checkpoint over its episodes in the variant; None if there was none.
        number: Number of the variant; 0 in files of earlier releases.
    """

    arguments: str
    episodes: int
    return_mean: float | None
    evaluation: EvaluationOutcome | None
    number: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of a run. `print` shows them in a few lines, as `penstock train` does at its end.

    For example::

        summary = penstock.Run("runs/first").summary
        print(summary.verdict, summary.stopped, summary.env_steps, summary.evaluation.return_mean)

    Attributes:
        run_dir: Folder of the run.
        env_id: Gymnasium id of the environment.
        seed: Seed of the run.
        stopped: Reason for the end of the run.
        stop_reason: Reason that a callback of `learner.callbacks` gave, with its name; empty if none has ended the run.
        evaluation: Evaluation of the best checkpoint, on episodes not used to choose it; None if there was none.
        best_evaluation: Evaluation by which the best checkpoint was chosen; None if there was none.
        policy_version: Version of the evaluated checkpoint.
        variants: Results in each environment variant, in their order; empty if the run has none.
        env_steps_to_threshold: Environment steps at the first evaluation that reached `evaluation.threshold`; None if
            none did or there is no threshold.
        learn_wall_s_to_threshold: Seconds from the first environment step to that evaluation, without those in which
            training waited for an evaluation.
        env_steps: Environment steps trained, over all sessions of the run.
        env_steps_taken: Environment steps that actors took, over all sessions. Includes steps that were not trained
            because they arrived too late or were refused.
        updates: Gradient steps, over all sessions.
        episodes: Training episodes whose last step was trained, over all sessions.
        minutes: Minutes from the first environment step to the end of training, summed over all sessions.
        limit: Limit of the run of which the largest share was done; None in summaries of earlier releases.
        threshold: Return that counts as solved, `evaluation.threshold`; None without one, and in summaries of earlier
            releases.
        sessions: Commands that trained the run, this one included.
        wall_s: Seconds since this command started.
        total_wall_s: Seconds of all these commands; the seconds of earlier ones do not include their starts.
        env_steps_per_s: Environment steps of this session per second since its first one.
        total_env_steps_per_s: Environment steps per second of training, over all sessions.
        staleness_mean: Mean age of trained segments, in policy versions.
        samples_per_insert: Uses of segments per collected segment.
        statistics: Statistics of collection and training in this session; None in summaries of earlier releases.
    """

    run_dir: str
    env_id: str
    seed: int
    env_steps: int
    wall_s: float
    env_steps_per_s: float
    evaluation: EvaluationOutcome | None
    env_steps_to_threshold: int | None
    learn_wall_s_to_threshold: float | None
    policy_version: int
    staleness_mean: float
    samples_per_insert: float
    stopped: Stopped
    variants: tuple[VariantOutcome, ...] = ()
    statistics: CoordinatorStatistics | None = None
    best_evaluation: EvaluationOutcome | None = None
    env_steps_taken: int = 0
    sessions: int = 1
    total_wall_s: float = 0.0
    total_env_steps_per_s: float = 0.0
    updates: int = 0
    episodes: int = 0
    minutes: float = 0.0
    limit: RunLimit | None = None
    threshold: float | None = None
    stop_reason: str = ""

    @property
    def verdict(self) -> str:
        """Whether the run has solved its task, in one line, with the return of the best checkpoint and the effort.

        The return is measured on new episodes, so that a lucky evaluation alone solves nothing.
        """
        effort = f"after {self.env_steps:,} steps, {60.0 * self.minutes:.1f} s of training"
        if self.evaluation is None:
            return f"{self._best_so_far}: {effort.removeprefix('after ')}"
        found = return_text(self.evaluation.return_mean)
        if self.threshold is None:
            return f"return: {found} {effort}"
        found += f" (threshold {self.threshold:g})"
        reached, seconds = self.env_steps_to_threshold, self.learn_wall_s_to_threshold
        first = "" if reached is None or seconds is None else f"after {reached:,} steps, {seconds:.1f} s of training"
        if self.evaluation.return_mean >= self.threshold:
            return f"solved: {found} {first or effort}"
        return f"not solved: {found} {effort}{f'; one evaluation reached it {first}' if first else ''}"

    @property
    def _best_so_far(self) -> str:
        if self.best_evaluation is None:
            return "no evaluation"
        threshold = "" if self.threshold is None else f" (threshold {self.threshold:g})"
        return f"best evaluation so far {return_text(self.best_evaluation.return_mean)}{threshold}"

    def timed(self, wall_s: float) -> "Summary":
        """Returns this summary for a command that took `wall_s` seconds in all."""
        return dataclasses.replace(self, wall_s=wall_s, total_wall_s=self.total_wall_s - self.wall_s + wall_s)

    def metrics(self) -> Metrics:
        """Reads the metrics of the run, as `penstock.load_metrics` does."""
        return load_metrics(self.run_dir)

    def write(self, path: Path) -> None:
        """Writes the summary atomically."""
        write_json(path, plain(self))

    @property
    def returns(self) -> list[tuple[str, str]]:
        """Returns of the best checkpoint, in all environments and in each variant, as text with labels."""
        lines = []
        if outcome := self.evaluation:
            best = f": best checkpoint (version {self.policy_version})"
            if self.best_evaluation:
                best += f", chosen for {return_text(self.best_evaluation.return_mean)} in an evaluation"
            lines.append(("return", f"{outcome.text('new ')}{best}"))
            lines += [("info", ", ".join(map(str, outcome.info_metrics)))] if outcome.info_metrics else []
        for place, variant in enumerate(self.variants):
            shown = variant.evaluation.text() if variant.evaluation else "-"
            lines.append((f"variant {variant.number or place}", f"{shown}, {variant.arguments}"))
        return lines

    @property
    def results(self) -> list[tuple[str, str]]:
        """Results of the run below the verdict, as text with labels."""
        reason = f" ({self.stop_reason})" if self.stop_reason else ""
        ended = f"by {self.stopped}{reason} after {self.env_steps:,} steps, {self.wall_s:.1f} s in all"
        return [*self.returns, ("ended", ended)]

    @property
    def places(self) -> list[tuple[str, str]]:
        """Folder of the run, and those of its learning curve and report that exist, with labels."""
        folder = RunFolder(Path(self.run_dir))
        drawn = {"curve": folder.learning_curve, "report": folder.report}
        return [("run", self.run_dir), *((label, str(path)) for label, path in drawn.items() if path.exists())]

    def commands(self, penstock: str) -> list[tuple[str, str]]:
        """Returns commands for the run, with labels. `penstock` starts Penstock from here."""
        run = shlex.quote(self.run_dir)
        uses = {"film": f"evaluate {run} --record-video{self._trust()}", "plot": f"plot {run}", "more": f"status {run}"}
        return [(label, f"{penstock} {use}") for label, use in uses.items()]

    def __str__(self) -> str:
        """Returns the lines that `penstock train` prints at its end, without hints."""
        lines = [*self.results, *self.places, *self.commands(installation.program())]
        return "\n".join([self.verdict, *(f"{label:<{CLOSING_LABEL - 1}} {text}" for label, text in lines)])

    def _trust(self) -> str:
        """Returns the option of commands that import code that the run's settings name; empty if they name none."""
        try:
            read = read_settings(RunFolder(Path(self.run_dir)).config, *ENVIRONMENT, "policy.module")
        except ConfigurationError:
            return ""
        return installation.TRUST_CODE if code_in(read.environment, read.policy) else ""

    def _repr_html_(self) -> str:
        """Returns the lines of `print` without commands, and the learning curve, for notebooks."""
        rows = [("environment", f"{self.env_id}, seed {self.seed}"), *self.results, ("run", self.run_dir)]
        cells = "".join(f"<tr><th>{name}</th><td>{html.escape(value)}</td></tr>" for name, value in rows)
        cells = f'<tr><th colspan="2">{html.escape(self.verdict)}</th></tr>{cells}'
        try:
            curve = base64.b64encode(RunFolder(Path(self.run_dir)).learning_curve.read_bytes()).decode()
        except OSError:
            return f"<table>{cells}</table>"
        return f'<table>{cells}</table><img width="640" src="data:image/png;base64,{curve}">'

    @classmethod
    def read(cls, path: Path) -> "Summary":
        """Reads a summary. Raises `ConfigurationError` if there is none or it can't be read."""
        try:
            # Summaries of earlier releases lack some values, which have defaults.
            return record_of(cls, json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigurationError(f"can't read the summary {path}: {error}") from None


def ended_summary(path: Path) -> Summary | None:
    """Returns the summary of a run that has ended; None if it can be resumed, or its summary is still to be written."""
    try:
        summary = Summary.read(path)
    except ConfigurationError:
        return None
    return None if summary.stopped in RESUMABLE else summary


def nothing_left(path: Path, run: RunConfig) -> str:
    """Returns why a run with this summary would train nothing with these settings; empty if it would train.

    A run without a readable summary is resumed, because its summary is still to be written.
    """
    done, best = _done(path)
    if done is None:
        return ""
    if unit := run.limits.reached(done):
        limit, option = getattr(run.limits, unit), "--total-steps" if unit == "steps" else f"--run.total-{unit}"
        raised = installation.named_setting(option, f"run.total_{unit}")
        return f"this run has already trained {limit:,} {unit}; raise {raised} to continue"
    if run.stop_at_return is not None and best is not None and best >= run.stop_at_return:
        return (
            f"this run has already reached its return of {run.stop_at_return:g} (an evaluation of {return_text(best)});"
            f" raise {installation.named_setting('--stop-at-return', 'run.stop_at_return')} to continue"
        )
    return ""


def raised_limits(path: Path, run: RunConfig) -> dict[str, str]:
    """Returns settings, as section.key, with which a run continues of which `nothing_left` says that it is done.

    They are twice the limits that it has reached, and no return at which it would stop again.
    """
    done, best = _done(path)
    if done is None:
        return {}
    raised = {f"run.total_{unit}": f"{2 * amount:.15g}" for unit, amount in run.limits.given if done.of(unit) >= amount}
    if run.stop_at_return is not None and best is not None and best >= run.stop_at_return:
        raised["run.stop_at_return"] = "none"
    return raised


def _done(path: Path) -> tuple[Extent | None, float | None]:
    """Returns the extent of a finished run, and its best return; None where it has none."""
    summary = ended_summary(path)
    if summary is None:
        return None, None
    best = summary.best_evaluation.return_mean if summary.best_evaluation else None
    return Extent(summary.env_steps, summary.updates, summary.episodes, summary.minutes), best
