"""Arguments of environments are kept as given in every form of a setting, or refused in one line."""

import collections
import datetime
import decimal
import enum
import math
import tomllib
import warnings
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.cli.options import parse
from penstock.config import Config, load_toml, parse_toml
from penstock.errors import ConfigurationError
from penstock.machine.environment_arguments import literal, plain, read, written

KEYS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.tuples(st.integers())
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just("None"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.dictionaries(st.just("python_literal"), inner)
    ),
    max_leaves=9,
)

Point = collections.namedtuple("Point", "x y")


class Colour(enum.IntEnum):
    RED = 1


class Mode(enum.StrEnum):
    FAST = "fast"


def in_file(config: Config, tmp_path: Path) -> Config:
    """Returns a configuration as a resumed run reads it."""
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml())
    return Config.load(path)


def option(text: str) -> Any:
    return parse("penstock train", "", [f"--environment.kwargs=x={text}"], trains=True).config.environment.kwargs["x"]


@given(VALUES)
def test_an_argument_keeps_its_value_and_its_type_in_a_file(value: object) -> None:
    kept = plain(value)
    config = Config(environment={"kwargs": {"x": value}, "training_kwargs": {"x": value}, "variants": [{"x": value}]})
    again = Config(**parse_toml(config.to_toml())).changed(seed=4).environment
    found = [kept, again.kwargs["x"], again.training_kwargs["x"], again.variants[0]["x"], read(written(value))]
    # The text of a value distinguishes types, and has one form for NaN.
    assert [repr(each) for each in found] == [repr(value)] * len(found)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ((3, 4), 'x = { python_literal = "(3, 4)" }'),
        ({1: "a"}, "x = { python_literal = \"{1: 'a'}\" }"),
        ("None", "x = { python_literal = \"'None'\" }"),
        ({"python_literal": 5}, "x = { python_literal = \"{'python_literal': 5}\" }"),
        (None, 'x = "None"'),
        (math.inf, "x = inf"),
        ({"tuple": [1, 2]}, "x = { tuple = [1, 2] }"),
    ],
)
def test_a_file_spells_arguments_as_a_user_may_write_them(value: object, line: str) -> None:
    values = parse_toml(f"[environment.kwargs]\n{line}\n")
    assert Config(**values).environment.kwargs == {"x": value}
    assert tomllib.loads(Config(**values).to_toml())["environment"]["kwargs"] == tomllib.loads(line)


def test_an_argument_may_have_the_name_of_the_literal() -> None:
    config = Config(environment={"kwargs": {"python_literal": (1, 2)}})
    assert Config(**parse_toml(config.to_toml())) == config


@pytest.mark.parametrize("table", ["[environment.kwargs]", "[kwargs]", "[environment.training-kwargs]"])
def test_literals_are_read_under_all_names_of_the_settings(table: str) -> None:
    environment = Config(
        **parse_toml(f'{table}\nx = {{ python_literal = "((1, 2), None)" }}\ny = "None"\n')
    ).environment
    assert {**environment.kwargs, **environment.training_kwargs} == {"x": ((1, 2), None), "y": None}


@pytest.mark.parametrize("text", ['"(1, 2"', '"open(1)"', '"name"', "5", '"{[1]: 2}"', f'"{"(" * 300}"'])
def test_a_wrong_literal_is_refused_with_its_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"[environment.kwargs]\nx = {{ python_literal = {text} }}\n")
    with pytest.raises(ConfigurationError, match=r"^[^\n]*mine\.toml: python_literal must be text with a value as in"):
        load_toml(path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(3, 4)", (3, 4)),
        ("((1, 2), [None, 'a'])", ((1, 2), [None, "a"])),
        ("{1: 'a', 2: (True, -inf)}", {1: "a", 2: (True, -math.inf)}),
        ("[0.5, inf]", [0.5, math.inf]),
        ("inf", math.inf),
        ('{"a": [true, null, Infinity]}', {"a": [True, None, math.inf]}),
        ("'None'", "None"),
        ("None", None),
        ("...", "..."),
        ("infinite", "infinite"),
        ("maps/a.txt", "maps/a.txt"),
    ],
)
def test_an_option_spells_arguments_as_in_python_or_json(text: str, value: object) -> None:
    assert repr(option(text)) == repr(value)


def nested(levels: int, value: Any = 1) -> Any:
    return nested(levels - 1, [value]) if levels else value


ENDLESS: list[Any] = [{}]
ENDLESS[0]["x"] = ENDLESS


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (nested(101), "is nested in more than 100 levels, or contains itself; "),
        ({1: (nested(100),)}, "is nested in more than 100 levels"),
        (ENDLESS, "is nested in more than 100 levels, or contains itself; "),
        ([10**5000], "is an integer of 16610 bits; give it as text"),
        ({-(10**5000): 1}, "is an integer of 16610 bits; "),
    ],
)
def test_a_value_that_no_file_can_hold_is_refused(value: object, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^environment\.kwargs\.x {fault}[^\n]*$"):
        penstock.configure("CartPole-v1", kwargs={"x": value})


@pytest.mark.parametrize("value", [nested(100), (nested(98), {1: 2}), [10**4000]])
def test_large_values_are_kept_in_a_file(value: object, tmp_path: Path) -> None:
    assert in_file(Config(environment={"kwargs": {"x": value}}), tmp_path).environment.kwargs["x"] == value


@pytest.mark.parametrize("text", ["{1, 2}", "b'a'", "1+2j"])
def test_an_option_refuses_values_that_have_no_form_in_a_file(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^environment\.kwargs\.x must be a number, [^\n]*; got "):
        option(text)


def test_variants_in_an_option_may_have_tuples_and_integer_keys() -> None:
    text = "[{'goal': (1, 2)}, {'goal': (3, 4), 'names': {0: None}}]"
    for given_as in (text, text[1:-1]):
        options = parse("penstock train", "", [f"--environment.variants={given_as}", "--actors=2"], trains=True)
        assert options.config.environment.variants == ({"goal": (1, 2)}, {"goal": (3, 4), "names": {0: None}})


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (np.float32(0.1), 0.10000000149011612),
        (np.float64(0.5), 0.5),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(False), False),
        (np.str_("a"), "a"),
        (np.array(3), 3),
        ({np.int64(3): (np.int8(1),)}, {3: (1,)}),
    ],
)
def test_numbers_of_numpy_become_equal_plain_ones(value: object, form: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        received = Config(environment={"kwargs": {"x": value}}).environment.kwargs["x"]
    assert repr(received) == repr(form)


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (np.linspace(0, 1, 3), [0.0, 0.5, 1.0]),
        (np.ones((1, 2), np.uint8), [[1, 1]]),
        (np.array(["a", None], object), ["a", None]),
        ({"starts": (np.zeros(1),)}, {"starts": ([0.0],)}),
        (PurePosixPath("/maps/a.txt"), "/maps/a.txt"),
    ],
)
def test_arrays_and_paths_become_plain_with_a_warning_at_the_line_of_the_caller(value: object, form: object) -> None:
    with pytest.warns(UserWarning, match=r"the environment receives the (list|text) ") as caught:
        config = penstock.configure("CartPole-v1", kwargs={"x": value}, preset="none")
    assert repr(config.environment.kwargs["x"]) == repr(form)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config.changed(seed=1)


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        b"a",
        1j,
        range(3),
        datetime.date(2020, 1, 1),
        decimal.Decimal(1),
        Colour.RED,
        Mode.FAST,
        Point(1, 2),
        collections.OrderedDict(a=1),
        int,
        np.longdouble(1),
        np.ones(2, np.longdouble),
        np.datetime64("2020-01-01", "ns"),
        np.ones(1, complex),
        np.ma.masked_array([1, 2], [True, False]),
        np.zeros((2, 2), "i4,i4"),
    ],
    ids=str,
)
@pytest.mark.parametrize("inside", [lambda value: value, lambda value: [(1, value)], lambda value: {0: value}])
def test_other_values_are_refused_in_one_line(value: Any, inside: Any) -> None:
    for settings in ({"kwargs": {"x": inside(value)}}, {"variants": [{"x": inside(value)}]}):
        with pytest.raises(
            ConfigurationError, match=r"^environment\.(kwargs|variants\.0)\.x must be [^\n]*; got [^\n]*$"
        ):
            Config(environment=settings)


def test_a_date_of_toml_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"environment\.kwargs\.x must be .*; got datetime.date\(2020, 1, 1\)"):
        Config(**parse_toml("[environment.kwargs]\nx = 2020-01-01\n"))


@pytest.mark.parametrize("text", ["__import__('os')", "a", "f'{1}'", "[x for x in (1,)]", "", "1 +", None])
def test_a_literal_is_a_value_and_not_a_program(text: object) -> None:
    with pytest.raises(ValueError):
        literal(text)


def test_the_file_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    text = '[environment.kwargs]\ngoal = [3, 4]\nunset = "None"\n[environment.kwargs.names]\n1 = "a"\n'
    assert Config(**parse_toml(text)).environment.kwargs == {"goal": [3, 4], "unset": None, "names": {"1": "a"}}
