"""Conversion of messages about the variants that actors play in turn."""

from collections.abc import Sequence
from typing import Any

from penstock.errors import InvalidSegment
from penstock.machine.environment_arguments import table_of_text, text_of_table
from penstock.types.variants import RunVariant, VariantChange
from penstock.v1 import run_pb2


def decode_arguments(text: str) -> dict[str, Any]:
    """Decodes the arguments of a variant. Raises `InvalidSegment` if they are not a table."""
    try:
        return table_of_text(text)
    except ValueError as error:
        raise InvalidSegment(f"the arguments of a variant can't be read: {error}") from error


def encode_change(change: VariantChange) -> run_pb2.ChangeVariantsRequest:
    """Encodes a request for a change."""
    return run_pb2.ChangeVariantsRequest(add=map(text_of_table, change.add), retire=change.retire)


def decode_change(message: run_pb2.ChangeVariantsRequest) -> VariantChange:
    """Decodes a request for a change. Raises `InvalidSegment` as `decode_arguments`."""
    return VariantChange([decode_arguments(each) for each in message.add], list(message.retire))


def encode_known(variants: Sequence[RunVariant]) -> run_pb2.ChangeVariantsResponse:
    """Encodes the variants of a run."""
    return run_pb2.ChangeVariantsResponse(
        variants=[
            run_pb2.KnownVariant(
                number=each.number,
                arguments=text_of_table(each.arguments),
                retired=each.retired,
                share=each.share,
                episodes=each.episodes,
                return_mean=each.return_mean,
            )
            for each in variants
        ]
    )


def decode_known(message: run_pb2.ChangeVariantsResponse) -> list[RunVariant]:
    """Decodes the variants of a run. Raises `InvalidSegment` as `decode_arguments`."""
    return [
        RunVariant(
            each.number,
            decode_arguments(each.arguments),
            each.retired,
            each.share,
            each.episodes,
            each.return_mean if each.HasField("return_mean") else None,
        )
        for each in message.variants
    ]
