"""Messages about specs that differ name each value that differs, in one bounded line."""

from dataclasses import replace

import pytest

from penstock.types.differences import contrast, same_spaces
from penstock.types.spaces import BoxSpace, DiscreteSpace, EnvironmentSpec, MultiDiscreteSpace, Space, Tree
from tests.support.segments.spaces import ALL_SPECS, masked, nested

PLANE = BoxSpace("float32", (3,), (0.0, -1.0, 0.0), (1.0,))
SPEC = EnvironmentSpec("A-v0", Tree.of(PLANE), Tree.of(DiscreteSpace(2)))
NESTED = replace(SPEC, observation=nested((("a",), PLANE), (("b", 0), DiscreteSpace(3))))
CELLS = MultiDiscreteSpace((400,), (7,) * 400, (0,) * 400)


@pytest.mark.parametrize(
    ("one", "other", "texts"),
    [
        (SPEC, SPEC, ("A-v0", "A-v0")),
        (SPEC, replace(SPEC, id="B-v0"), ("A-v0", "B-v0")),
        (
            SPEC,
            replace(SPEC, action=Tree.of(DiscreteSpace(3))),
            ("A-v0 with action Discrete(2, start=0)", "A-v0 with action Discrete(3, start=0)"),
        ),
        (SPEC, masked(SPEC), ("A-v0 with no action masks", "A-v0 with action masks of 2 bits")),
        (SPEC, replace(SPEC, frames=3), ("A-v0 with 1 frames", "A-v0 with 3 frames")),
        (
            NESTED,
            replace(NESTED, observation=nested((("a",), PLANE), (("c",), DiscreteSpace(3)))),
            (
                "A-v0 with observation 'b.0' Discrete(3, start=0), no observation 'c'",
                "A-v0 with no observation 'b.0', observation 'c' Discrete(3, start=0)",
            ),
        ),
        (
            NESTED,
            replace(NESTED, observation=Tree(NESTED.observation.leaves[::-1])),
            (
                "A-v0 with observation parts in the order ['a', 'b.0']",
                "A-v0 with observation parts in the order ['b.0', 'a']",
            ),
        ),
    ],
)
def test_each_side_shows_its_id_and_its_values_that_differ(
    one: EnvironmentSpec, other: EnvironmentSpec, texts: tuple[str, str]
) -> None:
    assert contrast(one, other) == texts


@pytest.mark.parametrize(
    ("one", "other", "ends"),
    [
        # Their short forms have the least and the greatest bound only.
        (PLANE, replace(PLANE, low=(0.0, 0.0, -1.0)), ("with low[1] -1.0", "with low[1] 0.0")),
        (PLANE, replace(PLANE, high=(1.0, 1.0, 0.5)), ("with high[2] 1.0", "with high[2] 0.5")),
        (CELLS, replace(CELLS, n=(*CELLS.n[:-1], 8)), ("with n[399] 7", "with n[399] 8")),
    ],
)
def test_elements_that_short_forms_omit_are_shown(one: Space, other: Space, ends: tuple[str, str]) -> None:
    texts = contrast(replace(SPEC, observation=Tree.of(one)), replace(SPEC, observation=Tree.of(other)))
    assert [text.endswith(end) for text, end in zip(texts, ends, strict=True)] == [True, True], texts


def test_the_text_has_one_line_of_bounded_length() -> None:
    keys = [100 * "long\n " + str(number) for number in range(100)]
    one, other = (
        replace(SPEC, observation=nested(*(((key,), DiscreteSpace(n)) for key in keys)), action=Tree.of(CELLS))
        for n in (2, 3)
    )
    for text in contrast(one, other, [("policy.trunk shared", "policy.trunk separate")]):
        assert "\n" not in text
        assert len(text) < 1000
        assert text.endswith("98 other differences")


def test_a_policy_fits_specs_that_differ_only_in_the_id() -> None:
    for spec in ALL_SPECS:
        assert same_spaces(spec, replace(spec, id="Another-v0"))
        assert not same_spaces(spec, replace(spec, mask_bits=spec.mask_bits + 1))
        assert not same_spaces(spec, replace(spec, frames=2))
        assert not same_spaces(spec, replace(spec, action=Tree.of(DiscreteSpace(11))))
