"""The file with the variants that a run has had, whose actors play them in turn: `variants.json` in its folder."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.machine.environment_arguments import read_tables, written_table
from penstock.machine.files import write_json
from penstock.types.variants import Arguments


@dataclass(frozen=True, slots=True)
class StoredVariant:
    """A variant, whose number is its place in the file: its own arguments, and whether it is no longer played."""

    arguments: Arguments
    retired: bool = False


def read_variants(file: Path) -> list[StoredVariant]:
    """Reads the variants of a run by number. Raises `OSError` or `ValueError` if the file can't be read."""
    try:
        return [_stored(each) for each in json.loads(file.read_text())]
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not a list of variants ({error})") from None


def write_variants(file: Path, variants: Sequence[StoredVariant]) -> None:
    """Writes the variants of a run by number. Raises `OSError`."""
    write_json(file, [{"arguments": written_table(each.arguments), "retired": each.retired} for each in variants])


def _stored(entry: dict[str, object]) -> StoredVariant:
    arguments = read_tables(entry["arguments"])
    if not isinstance(arguments, dict):
        raise TypeError("the arguments of a variant are no table")
    return StoredVariant(arguments, bool(entry["retired"]))
