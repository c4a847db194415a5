import pytest

from penstock.runs.metrics import return_text


@pytest.mark.parametrize(
    ("mean", "std", "expected"),
    [
        (475.26, None, "475.3"),
        (-1234.5, 345.6, "-1234.5 ± 345.6"),
        (9.46, None, "9.46"),
        (0.7453, None, "0.745"),
        (-0.00012345, None, "-0.000123"),
        (0.02, 1.25, "0.02 ± 1.25"),
        (21.0, 0.0, "21.0 ± 0.0"),
        (0.0, 0.0, "0.0 ± 0.0"),
        (1e-300, None, "0.000000000"),
        (float("nan"), None, "nan"),
    ],
)
def test_a_return_has_at_least_three_digits(mean: float, std: float | None, expected: str) -> None:
    assert return_text(mean, std) == expected
