"""Settings that earlier releases had, and how this release reads the settings of their runs.

This is the only list of removed settings. `names` answers a user's removed setting with its sentence, and `recorded`
converts the settings in the folder of a run.
"""

from dataclasses import dataclass
from typing import Final

from penstock.machine.environment_arguments import NONE


@dataclass(frozen=True, slots=True)
class Removed:
    """A setting that does not exist any more.

    Attributes:
        release: First release without it.
        since: Clause that says what replaces it, or why nothing does.
        renamed: Setting, as section.key, that takes its value with the same meaning; empty if there is none, and the
            value has no effect.
    """

    release: str
    since: str
    renamed: str = ""


REMOVED: Final = {
    "evaluation.final_timeout_s": Removed(
        "0.2.0", "evaluation.timeout_s replaces it, also for synchronous evaluations", "evaluation.timeout_s"
    ),
    "learner.replay_address": Removed(
        "0.2.0", "learner.replay_addresses replaces it, which may be one address", "learner.replay_addresses"
    ),
    "replay.restore": Removed("0.2.0", "`penstock replay restore` replaces it"),
    "replay.snapshot_interval_s": Removed(
        "0.2.0", "checkpoint.snapshot_interval_s replaces it", "checkpoint.snapshot_interval_s"
    ),
    "sampling.eta": Removed("0.2.0", "the priority of a segment is its mean absolute advantage"),
}
"""Removed settings by their names."""

REFUSED_VALUES: Final = {
    ("sampling.alpha", "auto"): "since 0.3.0 the learner does not choose the exponent; set it to 0.6, the default, or"
    " to 0 if priorities raise the variance of the gradient",
}
"""Alternatives to values that an earlier release accepted with a meaning of its own, by setting and text.

Values outside of a bound that became narrower are not here: the error about the bound names the accepted values.
"""

BEFORE: Final[dict[str, object]] = {
    "environment.action_masks": False,
    "policy.variance_epsilon": 1e-8,
    "policy.widest_range": 1e38,
    "ppo.clip_anchor": 0.0,
    "ppo.target_kl": NONE,
}
"""Values of settings in runs that do not record them, where this release's default would change the run.

A run records every setting that its release had, so a missing one had no effect yet, or was unset by default.
"""


def reason_of(name: str) -> str:
    """Returns a sentence about a removed setting, named as section.key or by its key; empty if there was none."""
    found = REMOVED.get(name) or next((each for full, each in REMOVED.items() if full.partition(".")[2] == name), None)
    return f"removed in {found.release}: {found.since}" if found is not None else ""
