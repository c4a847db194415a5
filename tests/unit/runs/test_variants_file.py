"""The file with a run's variants: what is read as written, and files that can't be read."""

from pathlib import Path

import pytest

from penstock.runs.variants_file import read_variants, write_variants
from penstock.types.variants import RunVariant


def test_variants_are_read_as_written(tmp_path: Path) -> None:
    variants = [
        RunVariant(0, {"g": 8.0, "lengths": [1.0, 2.0], "goal": (1, 2), "nothing": None}),
        RunVariant(1, {}, True),
    ]
    write_variants(tmp_path / "variants.json", variants)
    assert read_variants(tmp_path / "variants.json") == variants


@pytest.mark.parametrize("text", ["", "3", "[3]", "[{}]", '[{"arguments": [1], "retired": false}]', "[" * 100_000])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "variants.json").write_text(text)
    with pytest.raises(ValueError, match=r"\S"):
        read_variants(tmp_path / "variants.json")
