"""Replay of a run, as text: uses and ages of segments, and the effect of their priorities."""

from dataclasses import dataclass

from penstock.types.statistics import CoordinatorStatistics


@dataclass(frozen=True, slots=True)
class ReplayFigures:
    """Figures of replay, for display; "-" where not known yet.

    Attributes:
        uses: Uses of segments per collected segment.
        effective: Effective sample share of the last 100 batches.
        age: Mean age of the replayed segments of the last 100 batches, in versions.
        age_90: Age that 90% of these segments do not exceed.
        priority: Their mean priority, relative to draws by age alone.
        variance: Change of the gradient's variance by priorities, as a share.
        effect: The same as a sentence; empty if it is not known.
    """

    uses: str
    effective: str
    age: str
    age_90: str
    priority: str
    variance: str
    effect: str

    @property
    def line(self) -> str:
        """The figures in one line."""
        figures = (
            f"{self.uses} uses per segment | age {self.age}, 90% within {self.age_90} versions | priority"
            f" {self.priority} average"
        )
        return f"{figures} | {self.effect}" if self.effect else figures


def effect_of_priorities(gain: float | None) -> str:
    """Returns the effect of priorities with this gain, as a sentence; empty if it is not known."""
    if gain is None:
        return ""
    return f"priorities {'lower' if gain >= 0.0 else 'raise'} the variance of the gradient by {abs(gain):.0%}"


def replay_figures(uses: float, statistics: CoordinatorStatistics | None) -> ReplayFigures | None:
    """Returns the figures of a run with this number of uses per segment; None if it has replayed nothing yet."""
    if statistics is None or statistics.replayed is None:
        return None
    replayed, recent = statistics.replayed, statistics.recent
    gain = statistics.last.priority_gain if statistics.last else None
    return ReplayFigures(
        uses=f"{uses:.1f}",
        effective=_known("{:.0%}", recent.effective_sample_share if recent else None),
        age=f"{replayed.age_mean:.1f}",
        age_90=f"{replayed.age_90:.1f}",
        priority=_known("{:.1f} x", replayed.drawn_priority),
        variance=_known("{:+.0%}", None if gain is None else -gain),
        effect=effect_of_priorities(gain),
    )


def _known(text: str, value: float | None) -> str:
    return "-" if value is None else text.format(value)
