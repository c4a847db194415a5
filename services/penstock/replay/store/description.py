"""Description file of a store, and the JSON form of a schema.

Reading refuses a description of another format, and one whose schema hash does not match its columns.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import ConfigurationError, DamagedFile
from penstock.machine.files import write_json
from penstock.types.block import Column, Extent, Schema

FORMAT = 4
"""Format of the store, and the only one that is read (docs/compatibility.md)."""

DESCRIPTION_FILE = "store.json"


@dataclass(frozen=True, slots=True)
class Owner:
    """Run to which a store belongs: its number (0: none yet), and the public half of its key (empty: not known yet)."""

    run: int = 0
    key: bytes = b""


NO_OWNER = Owner()


@dataclass(frozen=True, slots=True)
class Description:
    """Description of a store: the schema of its segments, its size in bytes, and the run to which it belongs."""

    schema: Schema
    capacity_bytes: int
    owner: Owner = NO_OWNER


def write_description(folder: Path, description: Description) -> None:
    """Writes the description atomically and syncs it. `read_description` reads it. Raises `OSError` if that fails."""
    content = {
        "format": FORMAT,
        "capacity_bytes": description.capacity_bytes,
        "run": f"{description.owner.run:016x}",
        "run_key": description.owner.key.hex(),
        **describe_schema(description.schema),
    }
    write_json(folder / DESCRIPTION_FILE, content)


def damaged_store(path: Path, finding: str) -> DamagedFile:
    """Returns the error for a store that can't be used because one of its files is damaged."""
    return DamagedFile(
        f"{path} {finding}",
        f"make a run of a snapshot with penstock replay restore, or remove the folder {path.parent} to continue with an"
        " empty store",
    )


def read_schema(folder: Path) -> Schema:
    """Returns the schema of the store in a folder.

    Raises:
        ConfigurationError: The store has another format, or a schema hash that does not match its columns.
        DamagedFile: The description is missing or can't be parsed.
    """
    return read_description(folder).schema


def read_description(folder: Path) -> Description:
    """Returns the description of the store in a folder. Raises as `read_schema`."""
    path = folder / DESCRIPTION_FILE
    try:
        description = json.loads(path.read_text())
        if description["format"] != FORMAT:
            raise ConfigurationError(
                f"{path} is a store of format {description['format']}, and this version reads {FORMAT}; choose another"
                f" replay.folder, or remove the folder {folder} to continue with an empty store"
            )
        # Earlier releases wrote no run, or no key.
        owner = Owner(int(description.get("run", "0"), 16), bytes.fromhex(description.get("run_key", "")))
        return Description(schema_of(description, path), int(description["capacity_bytes"]), owner)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged_store(path, f"does not describe a store ({error})") from None


def describe_schema(schema: Schema) -> dict[str, object]:
    """Returns a schema as JSON values. `schema_of` reads them."""
    return {
        "schema_hash": f"{schema.hash:016x}",
        "unroll_length": schema.unroll_length,
        "columns": [[c.name, c.dtype, list(c.shape), int(c.extent), c.lead] for c in schema.columns],
    }


def schema_of(description: dict[str, Any], path: Path) -> Schema:
    """Returns the schema that a file's JSON describes.

    Raises:
        ConfigurationError: The schema hash does not match the columns.
        ValueError, KeyError, TypeError: The JSON describes no schema.
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
