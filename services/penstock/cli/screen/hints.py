"""Hints on settings to change in a run that learns slowly or not at all, derived from its statistics.

`_RULES` has all hints, under the observations of the table "Tuning" in docs/OPERATIONS.md, whose thresholds are here.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.types.statistics import LEAST_EFFECTIVE_SHARE, CoordinatorStatistics, Curve, LearningNumbers, Returns

ENOUGH_BATCHES = 20
"""Fewest recent batches for hints on learning. The means of fewer cover too little data."""

MOST_CLIPPED = 0.5
"""Share of clipped ratios above which most steps have no gradient, so that later epochs train only the others."""

LEAST_KL = 1e-4
"""KL divergence in nats per batch below which a policy hardly changes; usual values of target_kl are 0.01 to 0.03."""

LEAST_ENTROPY_CHANGE_SHARE, LEAST_ENTROPY_CHANGE = 0.02, 0.01
"""Changes below which the entropy is unchanged, as a share of the first entropy and in nats; the larger applies."""

MOST_AT_BOUND = 0.6
"""Share of an element's actions at one bound above which clipping hides from the policy how to leave the bound.
Policies that need both bounds are at each for half of the steps at most."""

MOST_GAIN_LOST = 0.05
"""Share by which priorities raise the variance of the gradient above which they cost more than they help."""

MOST_WAITED = 0.5
"""Share of the time spent waiting above which the cause of the wait, not the learner, limits the run's speed."""

MOST_IN_CALLBACKS = 0.05
"""Share of the time of training and callbacks above which callbacks of the user are slow."""

MOST_LATE = 0.1
"""Share of late segments above which the off-policy degree or the speed of some actors is unsuitable."""

MOST_OVERWRITTEN = 0.1
"""Share of overwritten segments above which the store is too small: they are overwritten between draw and commit."""

SIGNIFICANT = 4.0
"""Differences between mean returns, in standard errors, below which they may be chance. The best and the worst of many
evaluations often differ by three."""

MOST_FORGOTTEN = 0.3
"""Share of the rise from the worst to the best evaluation that the last ones must have lost to be far below the best.
"""

LEAST_RISE = 0.05
"""Share of the same range by which returns that still rise do so from one third of the last evaluations to the next."""

LATER, LATE = 0.1, 0.5
"""Shares of a run from which on its returns should have risen if the entropy has not changed, and in any case."""

_LAST = 3
"""Evaluations of which a common fault is unlikely to be chance."""


@dataclass(frozen=True, slots=True)
class Hint:
    """A hint: its observation, which is the row of the table "Tuning" in docs/OPERATIONS.md, and one line of text."""

    observation: str
    text: str


@dataclass(frozen=True, slots=True)
class _Run:
    """Facts about a run that the rules use. `recent` has no numbers as long as there are too few batches."""

    statistics: CoordinatorStatistics
    recent: LearningNumbers
    share_done: float
    ended: bool

    @property
    def curve(self) -> Curve:
        return self.statistics.curve


def hints(statistics: CoordinatorStatistics, share_done: float = 0.0, *, ended: bool = False) -> list[Hint]:
    """Returns hints, the most important first; none if nothing is unusual or it is too early.

    `share_done` is the share of the run's limit that is done, and `ended` whether this limit has ended the run.
    """
    enough = statistics.recent is not None and statistics.recent_batches >= ENOUGH_BATCHES
    recent = statistics.recent if enough else None
    run = _Run(statistics, recent or LearningNumbers(), share_done, ended)
    found = [(observation, rule(run)) for observation, rule in _RULES if enough or rule not in _OF_BATCHES]
    return [Hint(observation, text) for observation, text in found if text]


def _steps_refused(run: _Run) -> str:
    if not (refused := run.statistics.drops.refused_steps):
        return ""
    return (
        f"{refused:,} gradient steps were refused because their gradients were not finite: lower ppo.learning_rate, and"
        " check the environment's rewards"
    )


def _values_excluded(run: _Run) -> str:
    if not (absurd := run.statistics.drops.unsound_rows + run.statistics.drops.left_out_values):
        return ""
    return (
        f"{absurd:,} values were a million times larger than the others and were excluded from training: check the"
        " environment's observations and rewards"
    )


def _segments_refused(run: _Run) -> str:
    if not (refused := run.statistics.drops.refused_segments):
        return ""
    return (
        f"{refused:,} segments were refused because of unusable values: check the environment's observations and"
        " rewards, and the actors' logs"
    )


def _never_rewarded(run: _Run) -> str:
    curve = run.curve
    if curve.newest is None or not _is_flat(curve) or curve.low != curve.high:
        return ""
    return (
        f"all training episodes and evaluations had the return {curve.low:g}, so no reward tells actions apart yet:"
        " check that rewards differ, reward partial progress, or shorten the way to a reward"
    )


def _repeats_itself(run: _Run) -> str:
    curve = run.curve
    if len(curve.points) < _LAST or not _is_flat(curve) or curve.best is None or curve.high is None:
        return ""
    if curve.high <= curve.best.mean:
        return ""
    return (
        f"all evaluations had the return {curve.best.mean:g}, and a training episode {curve.high:g}, so the policy"
        " repeats itself: set evaluation.deterministic false, or raise ppo.entropy_coefficient"
    )


def _is_flat(curve: Curve) -> bool:
    """Returns whether all episodes of all evaluations had the same return, which training may have exceeded."""
    if curve.best is None or curve.worst is None:
        return curve.low == curve.high
    returns = {curve.best.mean, curve.worst.mean} | ({curve.low} if curve.low == curve.high else set())
    return len(returns) == 1 and not any(point.evaluation.std for point in curve.points)


def _hardly_changes(run: _Run) -> str:
    kl = run.recent.approximate_kl
    if kl is None or abs(kl) >= LEAST_KL or not _entropy_is_unchanged(run):
        return ""
    return (
        f"the policy hardly changes, by a KL divergence of {kl:.1g} per batch: raise ppo.learning_rate or ppo.epochs,"
        " and check that rewards differ"
    )


def _at_a_bound(run: _Run) -> str:
    share = run.recent.actions_at_bound
    if share is None or share <= MOST_AT_BOUND:
        return ""
    return (
        f"{share:.0%} of the actions of an element are at one bound, where the policy can't learn from smaller changes:"
        " set policy.squash_actions, unless the best action is that bound"
    )


def _entropy_is_unchanged(run: _Run) -> bool:
    entropy, first = run.recent.entropy, run.statistics.first_entropy
    if entropy is None or first is None:
        return False
    return abs(entropy - first) < max(LEAST_ENTROPY_CHANGE, LEAST_ENTROPY_CHANGE_SHARE * abs(first))


def _do_not_rise(run: _Run) -> str:
    first, newest = run.curve.first, run.curve.newest
    is_late = run.share_done >= LATE or (run.share_done >= LATER and _entropy_is_unchanged(run))
    if first is None or newest is None or not is_late or run.curve.low == run.curve.high or _has_risen(run):
        return ""
    unchanged = " and the entropy is unchanged" if _entropy_is_unchanged(run) else ""
    return (
        f"returns have not risen beyond chance in {run.share_done:.0%} of the run, from {first.mean:.4g} to"
        f" {newest.mean:.4g} in training{unchanged}: check that rewards depend on observations and actions"
        " (docs/not-learning.md), or raise run.total_steps or ppo.learning_rate"
    )


def _has_risen(run: _Run) -> bool:
    """Returns whether the newest training episodes or the last evaluation are better than the first ones."""
    curve = run.curve
    if curve.first is None or curve.newest is None:
        return True
    evaluated = curve.worst is not None and _exceeds(curve.points[-1].evaluation, curve.worst)
    return evaluated or _exceeds(curve.newest, curve.first)


def _exceeds(one: Returns, other: Returns) -> bool:
    """Returns whether the mean return of one sample exceeds another's by more than chance explains."""
    return one.mean - other.mean > SIGNIFICANT * math.hypot(one.error, other.error)


def _blind(run: _Run) -> str:
    features = run.statistics.features
    if features is None or features.constant < features.count or _has_risen(run):
        return ""
    return (
        f"all {features.count} features of the observation are constant: check the environment's observations, and"
        " subtract large offsets from them in a wrapper"
    )


def _coarse(run: _Run) -> str:
    features = run.statistics.features
    if features is None or not features.coarse:
        return ""
    return (
        f"{features.coarse} of {features.count} features of the observation vary by less than 100 steps of float32 at"
        " their size: set policy.observation_offsets, or subtract their offsets in a wrapper"
    )


def _unfinished(run: _Run) -> str:
    last = run.curve.points[-_LAST:]
    if len(last) < _LAST or not all(point.unfinished for point in last):
        return ""
    return (
        f"{last[-1].unfinished} of {last[-1].evaluation.episodes} episodes of the last evaluation were cut before their"
        " end: give the environment a time limit (max_episode_steps), set evaluation.deterministic false, or raise"
        " evaluation.max_episode_steps"
    )


def _worse_than_training(run: _Run) -> str:
    last = run.curve.points[-_LAST:]
    if not run.curve.comparable or len(last) < _LAST or any(point.unfinished for point in last):
        return ""
    pairs = [(point.training, point.evaluation) for point in last if point.training is not None]
    above = [(one, other) for one, other in pairs if one.mean - other.mean > other.std and _exceeds(one, other)]
    if len(above) < _LAST:
        return ""
    training, evaluation = above[-1]
    return (
        f"training returns ({training.mean:.4g}) are above those of the evaluations ({evaluation.mean:.4g}), which take"
        " the most likely action: set evaluation.deterministic false if a good policy must be random"
    )


def _forgets(run: _Run) -> str:
    best, worst, last = run.curve.best, run.curve.worst, run.curve.points[-_LAST:]
    if best is None or worst is None or len(last) < _LAST:
        return ""
    most = best.mean - MOST_FORGOTTEN * (best.mean - worst.mean)
    if not all(point.evaluation.mean < most and _exceeds(best, point.evaluation) for point in last):
        return ""
    now = _joined([point.evaluation for point in last])
    return (
        f"the last evaluations ({now.mean:.4g}) are far below the best ({best.mean:.4g}), so the run has forgotten:"
        " lower ppo.target_kl, then ppo.learning_rate"
    )


def _still_rises(run: _Run) -> str:
    points, best, worst = run.curve.points[-2 * _LAST :], run.curve.best, run.curve.worst
    if not run.ended or best is None or worst is None or len(points) < _LAST:
        return ""
    bounds = [round(third * len(points) / _LAST) for third in range(_LAST + 1)]
    thirds = [_joined([point.evaluation for point in points[a:b]]) for a, b in itertools.pairwise(bounds)]
    for earlier, later in itertools.pairwise(thirds):
        if later.mean - earlier.mean < LEAST_RISE * (best.mean - worst.mean):
            return ""
    if not _exceeds(thirds[-1], thirds[0]):
        return ""
    return (
        f"evaluations still rose when the run ended, from {thirds[0].mean:.4g} to {thirds[-1].mean:.4g}: raise"
        " run.total_steps in a new run"
    )


def _joined(returns: Sequence[Returns]) -> Returns:
    return functools.reduce(Returns.combined, returns)


def _fresh_too_old(run: _Run) -> str:
    share, degree = run.recent.fresh_effective_share, run.statistics.off_policy_degree
    if share is None or share >= LEAST_EFFECTIVE_SHARE:
        return ""
    setting = f"sampling.off_policy_degree (now {degree})" if degree else "sampling.publish_interval"
    return f"fresh data is too old, its effective sample share is {share:.0%}: lower {setting} or ppo.learning_rate"


def _replayed_too_old(run: _Run) -> str:
    share = run.recent.effective_sample_share
    if share is None or share >= LEAST_EFFECTIVE_SHARE or _fresh_too_old(run):
        return ""
    return (
        f"replayed data is too old, the effective sample share is {share:.0%}: lower sampling.half_life or"
        " sampling.max_staleness, or raise sampling.fresh_fraction"
    )


def _priorities_cost(run: _Run) -> str:
    gain = run.statistics.last.priority_gain if run.statistics.last else None
    if gain is None or gain >= -MOST_GAIN_LOST or not run.statistics.alpha:
        return ""
    return f"priorities raise the variance of the gradient by {-gain:.0%}: set sampling.alpha 0"


def _too_large_steps(run: _Run) -> str:
    clipped = run.recent.clipped_share
    if clipped is None or clipped <= MOST_CLIPPED:
        return ""
    return (
        f"policy updates are too large, {clipped:.0%} of the ratios are clipped: lower ppo.learning_rate,"
        " or set a lower ppo.target_kl"
    )


def _poor_values(run: _Run) -> str:
    explained = run.recent.explained_variance
    if explained is None or explained >= 0.0:
        return ""
    return (
        f"values predict returns worse than a constant would, explained variance {explained:.2f}: check that"
        " returns depend on observations, set policy.normalise_returns, or lower ppo.learning_rate"
    )


def _callbacks_cost(run: _Run) -> str:
    times = run.statistics.times
    spent_s, trained_s = times.batch_callbacks_s or 0.0, times.batch_train_s or 0.0
    if spent_s <= MOST_IN_CALLBACKS * (spent_s + trained_s):
        return ""
    share = spent_s / (spent_s + trained_s)
    return (
        f"learner.callbacks took {share:.0%} of the learner's time, {1e3 * spent_s:.3g} ms per batch: do their work in"
        " every tenth batch, or in on_evaluation"
    )


def _late(run: _Run) -> str:
    statistics = run.statistics
    late = statistics.drops.late_segments / max(1, statistics.segments_collected)
    if late <= MOST_LATE:
        return ""
    return (
        f"{late:.0%} of the fresh segments arrived too late to be fresh: raise sampling.off_policy_degree (now"
        f" {statistics.off_policy_degree}), or give slow actors fewer environments or shorter segments"
        " (actor.environments, actor.unroll_length)"
    )


def _overwritten(run: _Run) -> str:
    overwritten = run.statistics.drops.overwritten_priorities / max(1, run.statistics.segments_trained)
    if overwritten <= MOST_OVERWRITTEN:
        return ""
    return (
        f"{overwritten:.0%} of the trained segments were overwritten before their priorities arrived: raise"
        " replay.capacity_bytes"
    )


def _starved(run: _Run) -> str:
    if _waited_for_actors(run) <= MOST_WAITED or actors_waiting_share(run.statistics) > MOST_WAITED:
        return ""
    return f"{_waited(run)}, so actors are the bottleneck: raise train.actors or actor.environments"


def _alternate(run: _Run) -> str:
    if _waited_for_actors(run) <= MOST_WAITED or actors_waiting_share(run.statistics) <= MOST_WAITED:
        return ""
    degree = run.statistics.off_policy_degree
    if degree == 0:
        return f"{_waited(run)} and actors for the learner, because they alternate: raise sampling.off_policy_degree"
    return (
        f"{_waited(run)} and actors for the learner: raise sampling.off_policy_degree (now {degree}) or"
        " sampling.batch_segments"
    )


def _waits_for_another(run: _Run) -> str:
    others = [wait for wait in run.statistics.waits if not wait.for_actors and wait.share > MOST_WAITED]
    return "".join(
        f"the learner waited {wait.share:.0%} of the time for {wait.reason}: check its logs and metrics"
        for wait in others[:1]
    )


def _waited_for_actors(run: _Run) -> float:
    return sum(wait.share for wait in run.statistics.waits if wait.for_actors)


def _waited(run: _Run) -> str:
    return f"the learner waited {_waited_for_actors(run):.0%} of the time for fresh segments"


def actors_waiting_share(statistics: CoordinatorStatistics) -> float:
    """Returns the share of the actors' time spent waiting for grants or weights; 0 if no times are known."""
    times = statistics.times
    waiting_s = times.collect_wait_s or 0.0
    total_s = times.collect_busy_s + waiting_s
    return waiting_s / total_s if total_s > 0.0 else 0.0


_RULES: tuple[tuple[str, Callable[[_Run], str]], ...] = (
    ("gradient steps are refused", _steps_refused),
    ("values are excluded", _values_excluded),
    ("segments are refused", _segments_refused),
    ("no episode reaches a reward", _never_rewarded),
    ("actions stay at a bound", _at_a_bound),
    ("the policy repeats itself", _repeats_itself),
    ("features are constant", _blind),
    ("float32 is too coarse", _coarse),
    ("the policy hardly changes", _hardly_changes),
    ("returns do not rise", _do_not_rise),
    ("episodes of evaluations do not end", _unfinished),
    ("evaluations are worse than training", _worse_than_training),
    ("the run forgets", _forgets),
    ("the run was too short", _still_rises),
    ("fresh data is too old", _fresh_too_old),
    ("replayed data is too old", _replayed_too_old),
    ("priorities do not help", _priorities_cost),
    ("the policy changes too much", _too_large_steps),
    ("values are worse than a constant", _poor_values),
    ("callbacks are slow", _callbacks_cost),
    ("segments arrive late", _late),
    ("priorities arrive too late", _overwritten),
    ("the learner is starved, actors are busy", _starved),
    ("both wait, because they alternate", _alternate),
    ("the learner waits for the replay service", _waits_for_another),
)
"""Observations and their rules, the most important first. A rule returns the text of the hint, or an empty one."""

_OF_BATCHES = (_priorities_cost, _callbacks_cost, _late, _overwritten, _starved, _alternate, _waits_for_another)
"""Rules on counts that say little about the first batches."""
