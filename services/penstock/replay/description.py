"""The small file beside a store that says what its bytes are, and schemas as they stand in such files.

Refuses: a description of another format, or one that names another schema than it describes. Called by `ring_store`,
`store_reader` and `snapshot_folder`.
"""

import json
from pathlib import Path
from typing import Any

from penstock.errors import ConfigurationError, DamagedFile
from penstock.files import write_json
from penstock.types import Column, Extent, Schema

FORMAT = 3
"""Of the store and the only one that is read: before the first release, a store of a former 0.x format is refused."""

DESCRIPTION_FILE = "store.json"


def write_description(folder: Path, schema: Schema, capacity_bytes: int) -> None:
    """Writes what `read_schema` reads, at once and lastingly."""
    write_json(
        folder / DESCRIPTION_FILE,
        {"format": FORMAT, "capacity_bytes": capacity_bytes, **describe_schema(schema)},
    )


def damaged_store(path: Path, finding: str) -> DamagedFile:
    """The error for a store that can't be used, since one of its files is not what was written."""
    return DamagedFile(
        f"{path} {finding}",
        f"make a run of a snapshot with penstock replay restore, or remove the folder {path.parent} to go on with an"
        " empty store",
    )


def read_schema(folder: Path) -> Schema:
    """The schema of the store in a folder. Raises `ConfigurationError` if there is none of this format."""
    return read_description(folder)[0]


def read_description(folder: Path) -> tuple[Schema, int]:
    """The schema and the size in bytes of the store in a folder; raises as `read_schema`."""
    path = folder / DESCRIPTION_FILE
    try:
        description = json.loads(path.read_text())
        if description["format"] != FORMAT:
            raise ConfigurationError(
                f"{path} is a store of format {description['format']}, and this version reads {FORMAT}; choose another"
                f" replay.folder, or remove the folder {folder} to go on with an empty store"
            )
        return schema_of(description, path), int(description["capacity_bytes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged_store(path, f"does not describe a store ({error})") from None


def describe_schema(schema: Schema) -> dict[str, object]:
    """A schema as it stands in JSON files; `schema_of` reads it back."""
    return {
        "schema_hash": f"{schema.hash:016x}",
        "unroll_length": schema.unroll_length,
        "columns": [[c.name, c.dtype, list(c.shape), int(c.extent), c.lead] for c in schema.columns],
    }


def schema_of(description: dict[str, Any], path: Path) -> Schema:
    """The schema that the JSON of a file describes.

    Raises:
        ConfigurationError: It names another schema than it describes.
        ValueError, KeyError, TypeError: It describes none.
    """
    columns = tuple(
        Column(name, dtype, tuple(shape), Extent(extent), lead)
        for name, dtype, shape, extent, lead in description["columns"]
    )
    schema = Schema(description["unroll_length"], columns)
    if description["schema_hash"] != f"{schema.hash:016x}":
        raise ConfigurationError(
            f"{path} names schema {description['schema_hash']} and describes {schema.hash:016x}; choose another folder"
        )
    return schema
