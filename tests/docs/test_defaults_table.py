"""The table of defaults in docs/training.md is that of the code."""

from penstock.config import Config
from tests.docs.pages import ROOT

DESIGNED = {
    "ppo.learning_rate": "0.0003",
    "ppo.epochs": "10",
    "ppo.clip_range": "0.2",
    "ppo.entropy_coefficient": "0.01",
    "replay.capacity_bytes": "100000 segments",
    "sampling.alpha": "0.6",
    "sampling.beta": "0.4",
    "sampling.min_replay_segments": "1000",
}


def rows() -> dict[str, list[str]]:
    """Returns the other cells of each row by the name of its setting."""
    section = (ROOT / "docs" / "training.md").read_text().split("### Defaults\n")[1].split("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| `")
    ]
    return {name.strip("`"): rest for name, *rest in cells}


def default(name: str) -> str:
    section, _, key = name.partition(".")
    config = Config()
    if name == "replay.capacity_bytes":
        return f"{config.replay.store_size.amount / 2**20:g} MiB or more"
    return f"{getattr(getattr(config, section), key):g}"


def test_the_table_has_every_default_of_the_first_design() -> None:
    assert {name: designed for name, (designed, *_) in rows().items()} == DESIGNED


def test_the_table_has_the_defaults_of_the_code() -> None:
    assert {name: found for name, (_, found, _) in rows().items()} == {name: default(name) for name in DESIGNED}


def test_a_default_that_is_not_called_as_designed_differs() -> None:
    for name, (designed, found, reason) in rows().items():
        assert reason.startswith("as designed") == (designed == found), name
