"""Hints on what to change in a run that learns slowly or not at all, derived from its statistics."""

from penstock.types.statistics import CoordinatorStatistics, LearningNumbers

ENOUGH_BATCHES = 20
"""Fewest recent batches for hints on learning. The means of fewer cover too little data."""

LEAST_EFFECTIVE_SHARE = 0.3
"""Effective sample share below which a few steps with large weights dominate a batch."""

MOST_CLIPPED = 0.5
"""Share of clipped ratios above which most steps have no gradient, so that later epochs train only the others."""

LEAST_KL = 1e-4
"""KL divergence in nats per batch below which a policy hardly changes; usual values of target_kl are 0.01 to 0.03."""

LEAST_ENTROPY_CHANGE_SHARE, LEAST_ENTROPY_CHANGE = 0.02, 0.01
"""Changes below which the entropy is unchanged, as a share of the first entropy and in nats; the larger applies."""

MOST_AT_BOUND = 0.9
"""Share of an element's actions at one bound above which clipping hides from the policy how to leave the bound."""

MOST_WAITED = 0.5
"""Share of the time spent waiting above which the cause of the wait, not the learner, limits the run's speed."""

MOST_LATE = 0.1
"""Share of late segments above which the off-policy degree or the speed of some actors is unsuitable."""

MOST_OVERWRITTEN = 0.1
"""Share of overwritten segments above which the store is too small: they are overwritten between draw and commit."""


def hints(statistics: CoordinatorStatistics) -> list[str]:
    """Returns hints, one line each, the most important first; none if nothing is unusual or it is too early."""
    recent = statistics.recent
    if recent is None or statistics.recent_batches < ENOUGH_BATCHES:
        return _of_values(statistics)
    lines = [*_of_values(statistics), *_of_age(statistics, recent), *_of_steps(statistics, recent)]
    return lines + _of_drops(statistics) + _of_waits(statistics)


def _of_values(statistics: CoordinatorStatistics) -> list[str]:
    lines = []
    if refused := statistics.drops.refused_steps:
        lines.append(
            f"{refused:,} gradient steps were refused because their gradients were not finite: lower ppo.learning_rate,"
            " and check the environment's rewards"
        )
    if absurd := statistics.drops.unsound_rows + statistics.drops.left_out_values:
        lines.append(
            f"{absurd:,} values were a million times larger than the others and were excluded from training: check the"
            " environment's observations and rewards"
        )
    if refused := statistics.drops.refused_segments:
        lines.append(
            f"{refused:,} segments were refused because of unusable values: check the environment's observations and"
            " rewards, and the actors' logs"
        )
    return lines


def _of_age(statistics: CoordinatorStatistics, recent: LearningNumbers) -> list[str]:
    fresh, every = recent.fresh_effective_share, recent.effective_sample_share
    if fresh is not None and fresh < LEAST_EFFECTIVE_SHARE:
        if statistics.off_policy_degree:
            change = f"lower sampling.off_policy_degree (now {statistics.off_policy_degree})"
        else:
            change = "lower sampling.publish_interval or ppo.learning_rate"
        return [f"fresh data is too old, its effective sample share is {fresh:.0%}: {change}"]
    if every is not None and every < LEAST_EFFECTIVE_SHARE:
        return [
            f"replayed data is too old, the effective sample share is {every:.0%}: lower sampling.half_life or"
            " sampling.max_staleness, or raise sampling.fresh_fraction"
        ]
    return []


def _of_steps(statistics: CoordinatorStatistics, recent: LearningNumbers) -> list[str]:
    lines = []
    if recent.clipped_share is not None and recent.clipped_share > MOST_CLIPPED:
        lines.append(
            f"policy updates are too large, {recent.clipped_share:.0%} of the ratios are clipped: lower"
            " ppo.learning_rate or ppo.epochs, or set ppo.target_kl"
        )
    if _hardly_changes(recent, statistics.first_entropy):
        lines.append(
            f"the policy hardly changes, by a KL divergence of {recent.approximate_kl:.1g} per batch: raise"
            " ppo.learning_rate or ppo.epochs, and check that rewards differ"
        )
    if recent.actions_at_bound is not None and recent.actions_at_bound > MOST_AT_BOUND:
        lines.append(
            f"{recent.actions_at_bound:.0%} of the actions of an element are at one bound, where the policy can't learn"
            " from smaller changes: set policy.squash_actions, unless the best action is that bound"
        )
    if recent.explained_variance is not None and recent.explained_variance < 0.0:
        lines.append(
            f"values predict returns worse than a constant would, explained variance {recent.explained_variance:.2f}:"
            " set policy.normalise_returns, raise ppo.value_coefficient, or lower ppo.learning_rate"
        )
    return lines


def _hardly_changes(recent: LearningNumbers, first_entropy: float | None) -> bool:
    if recent.approximate_kl is None or recent.entropy is None or first_entropy is None:
        return False
    tolerance = max(LEAST_ENTROPY_CHANGE, LEAST_ENTROPY_CHANGE_SHARE * abs(first_entropy))
    return abs(recent.approximate_kl) < LEAST_KL and abs(recent.entropy - first_entropy) < tolerance


def _of_drops(statistics: CoordinatorStatistics) -> list[str]:
    lines, drops = [], statistics.drops
    late = drops.late_segments / max(1, statistics.segments_collected)
    if late > MOST_LATE:
        lines.append(
            f"{late:.0%} of the fresh segments arrived too late to be fresh: raise sampling.off_policy_degree (now"
            f" {statistics.off_policy_degree}), or give slow actors fewer environments or shorter segments"
            " (actor.environments, actor.unroll_length)"
        )
    overwritten = drops.overwritten_priorities / max(1, statistics.segments_trained)
    if overwritten > MOST_OVERWRITTEN:
        lines.append(
            f"{overwritten:.0%} of the trained segments were overwritten before their priorities arrived: raise"
            " replay.capacity_bytes"
        )
    return lines


def _of_waits(statistics: CoordinatorStatistics) -> list[str]:
    fresh = sum(wait.share for wait in statistics.waits if wait.for_actors)
    if fresh > MOST_WAITED:
        waited = f"the learner waited {fresh:.0%} of the time for fresh segments"
        if actors_waiting_share(statistics) <= MOST_WAITED:
            return [f"{waited}, so actors are the bottleneck: raise train.actors or actor.environments"]
        if statistics.off_policy_degree == 0:
            return [f"{waited} and actors for the learner, because they alternate: raise sampling.off_policy_degree"]
        return [
            f"{waited} and actors for the learner: raise sampling.off_policy_degree (now"
            f" {statistics.off_policy_degree}) or sampling.batch_segments"
        ]
    return [
        f"the learner waited {wait.share:.0%} of the time for {wait.reason}: check its logs and metrics"
        for wait in statistics.waits
        if wait.share > MOST_WAITED
    ]


def actors_waiting_share(statistics: CoordinatorStatistics) -> float:
    """Returns the share of the actors' time spent waiting for grants or weights; 0 if no times are known."""
    times = statistics.times
    waiting_s = times.collect_wait_s or 0.0
    total_s = times.collect_busy_s + waiting_s
    return waiting_s / total_s if total_s > 0.0 else 0.0
