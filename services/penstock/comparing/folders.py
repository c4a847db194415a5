"""The folder of a comparison or a grid: its table with the design, settings by label, and a run for each seed.

NAME.json              design and results; NAME is the command
LABEL.toml             settings, such as a.toml
LABEL/seed-0/          a run with these settings
logs/                  output of the commands of the runs
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.comparing.many_runs import PlannedRun
from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.machine.files import make_folder, write_atomically, write_json
from penstock.machine.system_errors import in_words

Design = Mapping[str, object]
"""JSON values that are chosen before the first run."""


def begin(folder: Path, command: str, design: Design, settings: Mapping[str, Config]) -> None:
    """Makes the folder, or checks that it has this design and these settings by label.

    A design that is changed after its first results has another error rate.

    Raises `ConfigurationError` if the folder has others, or can't be written.
    """
    table, files = folder / f"{command}.json", {f"{label}.toml": config.to_toml() for label, config in settings.items()}
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
    if found:
        own = _read(table).get("design")
        other = [
            f"other settings in {name}" for name in sorted(found & files.keys()) if _text(folder / name) != files[name]
        ]
        if isinstance(own, dict):
            names = [name for name in {**own, **design} if own.get(name) != design.get(name)]
            other += [f"{table.name} has {name} {own.get(name)}, not {design.get(name)}" for name in names]
        elif {name for name in found if not name.startswith(".")} - {"logs", *files}:
            other.append("no design")
        if other:
            raise ConfigurationError(
                f"{folder} has other runs ({'; '.join(other)}); repeat its own command to continue it, or choose"
                " another --name"
            )
        if own is not None:
            return
    try:
        make_folder(folder / "logs")
        for name, text in files.items():
            write_atomically(folder / name, text.encode())
        # Last, because a folder with it is complete. One without it, after a kill, is completed.
        write_json(table, {"design": design})
    except OSError as error:
        raise ConfigurationError(f"can't write {folder}: {in_words(error, folder, 'choose another --name')}") from None


def planned(folder: Path, label: str, seeds: Sequence[int], *, trusted: bool) -> list[PlannedRun]:
    """Returns the runs with the settings of a label, one for each seed."""
    return [
        PlannedRun(
            name=f"{label}, seed {seed}",
            folder=folder / label / f"seed-{seed}",
            log=folder / "logs" / f"{label}-seed-{seed}.log",
            settings=folder / f"{label}.toml",
            seed=seed,
            trusted=trusted,
        )
        for seed in seeds
    ]


def _read(table: Path) -> dict[str, object]:
    try:
        found = json.loads(table.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
