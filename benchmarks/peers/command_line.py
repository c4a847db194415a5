"""Options of the peers' programs: one for each field of a dataclass; imported in the environment of each peer."""

import argparse
from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Base of the arguments of a program. A field with `choices` in its metadata accepts no other value."""

    @classmethod
    def from_arguments(cls) -> Self:
        """Parses the command line."""
        parser = argparse.ArgumentParser()
        for each in fields(cls):
            assert isinstance(each.type, type), each.type
            parser.add_argument(_option(each.name), type=each.type, choices=each.metadata.get("choices"), required=True)
        return cls(**vars(parser.parse_args()))

    def options(self) -> list[str]:
        """Returns the command line that `from_arguments` parses."""
        return [f"{_option(each.name)}={getattr(self, each.name)}" for each in fields(self)]


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
