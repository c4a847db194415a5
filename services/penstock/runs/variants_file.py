"""The file with the variants that a run has had, whose actors play them in turn: `variants.json` in its folder."""

import json
from collections.abc import Sequence
from pathlib import Path

from penstock.machine.environment_arguments import read_tables, written_table
from penstock.machine.files import write_json
from penstock.types.variants import RunVariant


def read_variants(file: Path) -> list[RunVariant]:
    """Reads the variants of a run by number, with their arguments and whether they are retired.

    Raises `OSError` or `ValueError` if the file can't be read.
    """
    try:
        return [_variant(number, each) for number, each in enumerate(json.loads(file.read_text()))]
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not a list of variants ({error})") from None


def write_variants(file: Path, variants: Sequence[RunVariant]) -> None:
    """Writes the variants of a run by number. Raises `OSError`."""
    write_json(file, [{"arguments": written_table(each.arguments), "retired": each.retired} for each in variants])


def _variant(number: int, entry: dict[str, object]) -> RunVariant:
    arguments = read_tables(entry["arguments"])
    if not isinstance(arguments, dict):
        raise TypeError("the arguments of a variant are no table")
    return RunVariant(number, arguments, bool(entry["retired"]))
