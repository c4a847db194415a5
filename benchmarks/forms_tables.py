"""The tables of forms of environments, from results/environment_forms.json, and of EnvPool's tasks, from
results/envpool.json.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

Document = Mapping[str, Any]

FORMS = ("single", "vectorised", "EnvPool")
_FORM_OF_RUN = {"sync": "single", "auto": "vectorised"}
_KINDS = {
    "players": "several players",
    "requires the system Qt": "a library of the system, Qt 5",
    "failed to open": "a file that EnvPool's wheel lacks",
}
"""Kinds of refusals, by texts of their reasons; others are given in full."""


def steps(document: Document) -> str:
    """Returns the processor time of a step of each task in each form."""
    found = {(each["task"], each["environments"], each["form"]): each["cpu_us"] for each in document["readings"]}
    rows = []
    for task, count in dict.fromkeys(key[:2] for key in found):
        times = [found.get((task, count, form)) for form in FORMS]
        rows.append(f"| {task} | {count} | {' | '.join('' if each is None else f'{each:.1f}' for each in times)} |")
    return "\n".join([f"| task | environments | {' | '.join(FORMS)} |", "|---|---|---|---|---|", *rows])


def runs(document: Document) -> str:
    """Returns the pace and the processor time of whole runs."""
    found = {_FORM_OF_RUN[each["vectorization"]]: each for each in document["runs"]}
    one, other = (found[form] for form in FORMS[:2])
    return (
        f"A whole run of the preset `pendulum`, {document['steps']:,} steps, takes {one['steps_per_s']:,.0f} steps/s"
        f" and {one['cpu_s']:.0f} s of processor time with single environments, and {other['steps_per_s']:,.0f} steps/s"
        f" and {other['cpu_s']:.0f} s with vectorised ones: {other['steps_per_s'] / one['steps_per_s']:.1f} times the"
        " pace."
    )


def tasks(document: Document) -> str:
    """Returns how many tasks of each family of EnvPool are accepted, and why the others are refused."""
    registered, checked = document["registered"], document["tasks"]
    number = Counter(each["family"] for each in checked)
    accepted = Counter(each["family"] for each in checked if not each["reason"])
    masked = Counter(each["family"] for each in checked if each["mask_bits"])
    rows = [
        f"| {family} | {registered[family]} | {number[family]} | {accepted[family]} | {masked[family] or ''} |"
        for family in sorted(registered, key=registered.get, reverse=True)
    ]
    reasons = Counter(_kind(each["reason"]) for each in checked if each["reason"])
    return "\n".join(
        [
            f"**{sum(accepted.values()):,} of {len(checked):,} checked tasks of {sum(registered.values()):,} are"
            f" accepted by their name alone**, with EnvPool {document['envpool']}.",
            "",
            "| family | tasks | checked | accepted | with action masks |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "| refused because of | tasks |",
            "|---|---|",
            *(f"| {reason} | {count} |" for reason, count in reasons.most_common()),
        ]
    )


def _kind(reason: str) -> str:
    return next((kind for text, kind in _KINDS.items() if text in reason), reason.replace("|", "\\|"))
