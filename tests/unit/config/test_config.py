import json
import math
import typing
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.config import Config, build, load_toml, merge, parse_toml
from penstock.errors import ConfigurationError
from penstock.types.replay import MAX_SLOTS

SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=9)


def round_trip(config: Config) -> Config:
    return build(parse_toml(config.to_toml()))


@example(
    kwargs={"text": "5", "other": "true", "unset": None, "far": math.inf},
    stop_at_return=None,
    learning_rate=1.0,
    hidden_sizes=(),
    value_clip_range=None,
    capacity_bytes=2**16,
)
@given(
    kwargs=st.dictionaries(st.text(min_size=1, max_size=9), SCALARS, max_size=4),
    stop_at_return=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    learning_rate=st.floats(1e-12, 1.0),
    hidden_sizes=st.lists(st.integers(1, 4096), max_size=4).map(tuple),
    value_clip_range=st.none() | st.floats(1e-6, 10.0),
    capacity_bytes=st.integers(2**16, 2**45),
)
def test_toml_reads_back_to_an_equal_configuration(
    kwargs: dict[str, bool | int | float | str | None],
    stop_at_return: float | None,
    learning_rate: float,
    hidden_sizes: tuple[int, ...],
    value_clip_range: float | None,
    capacity_bytes: int,
) -> None:
    config = build(
        {
            "run": {"stop_at_return": stop_at_return},
            "environment": {"kwargs": kwargs, "imports": ("some.module",)},
            "policy": {"hidden_sizes": hidden_sizes},
            "ppo": {"learning_rate": learning_rate, "value_clip_range": value_clip_range},
            "replay": {"capacity_bytes": capacity_bytes},
        }
    )
    assert round_trip(config) == config
    types = {name: type(value) for name, value in round_trip(config).environment.kwargs.items()}
    assert types == {name: type(value) for name, value in kwargs.items()}


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"ppo": {"learning_rat": 1e-3}}, "ppo.learning_rat"),
        ({"pbo": {}}, "pbo"),
        ({"sampling": {"alpha": 0.5, "omega": 1}}, "sampling.omega"),
    ],
)
def test_an_unknown_key_is_named(values: dict[str, object], name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^unknown setting {name};"):
        build(values)


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("ppo", {"discount": 1.5}),
        ("ppo", {"epochs": 0}),
        ("ppo", {"learning_rate": -1}),
        ("ppo", {"learning_rate": 1.1}),
        ("ppo", {"learning_rate": math.nan}),
        ("policy", {"activation": "sine"}),
        ("replay", {"listen": "no-port"}),
        ("replay", {"capacity_bytes": 10}),
        ("sampling", {"fresh_fraction": -0.1}),
        ("evaluation", {"mode": "sometimes"}),
        ("sampling", {"off_policy_degree": -2}),
    ],
)
def test_a_value_out_of_range_is_named_with_the_value_received(section: str, values: dict[str, object]) -> None:
    ((name, value),) = values.items()
    with pytest.raises(ConfigurationError, match=f"^{section}.{name} must be [^\\n]*; got {value!r}$"):
        build({section: values})


FLOATS = [
    (section, key)
    for section, settings in Config()
    for key, field in type(settings).model_fields.items()
    if float in (field.annotation, *typing.get_args(field.annotation))
]


@pytest.mark.parametrize(("section", "key"), FLOATS)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, "inf", "nan"])
def test_numbers_are_finite(section: str, key: str, value: object) -> None:
    if (section, key) == ("sampling", "half_life") and value in (math.inf, "inf"):
        assert build({section: {key: value}}).sampling.half_life == math.inf
        return
    with pytest.raises(ConfigurationError, match=f"^{section}.{key} must be a .*; got .*{value}"):
        build({section: {key: value}})


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("ppo", {"epochs": True}),
        ("ppo", {"learning_rate": True}),
        ("ppo", {"target_kl": False}),
        ("train", {"actors": True}),
        ("policy", {"hidden_sizes": [64, True]}),
        ("replay", {"capacity_bytes": True}),
        ("run", {"seed": False}),
    ],
)
def test_a_boolean_is_refused_as_a_number(section: str, values: dict[str, object]) -> None:
    ((name, _),) = values.items()
    with pytest.raises(
        ConfigurationError, match=rf"^{section}\.{name} must be a number, not true or false; got .*(True|False)"
    ):
        build({section: values})


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:13"])
def test_devices_have_the_names_of_torch(device: str) -> None:
    assert build({"learner": {"device": device}}).learner.device == device


@pytest.mark.parametrize("device", ["gpu", "tpu", "CUDA", "cuda:", "cuda:x", "cpu:0", "", "cuda\n"])
def test_an_unknown_device_is_refused_with_the_known_ones(device: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^learner\.device must be auto, cpu, cuda, or cuda:N"):
        build({"learner": {"device": device}})


def test_points_of_a_schedule_are_read_from_options_and_from_files() -> None:
    given = [[0, 0.1], [0.05, 1], [1, 0]]
    config = build({"ppo": {"learning_rate_schedule": "[[0, 0.1], [0.05, 1], [1, 0]]"}})
    assert config.ppo.learning_rate_schedule == ((0.0, 0.1), (0.05, 1.0), (1.0, 0.0))
    assert config == build({"ppo": {"learning_rate_schedule": given}}) == build(parse_toml(config.to_toml()))


@pytest.mark.parametrize("given", ["square", 3, None, [], [[0, 1, 2]], [[0, 2]], [[-0.1, 1]], "[[0, 1]", [[0, "much"]]])
def test_another_schedule_is_refused_with_the_forms_of_one(given: object) -> None:
    with pytest.raises(ConfigurationError, match=r"must be constant, linear, cosine, or points .*; got "):
        build({"ppo": {"entropy_schedule": given}})
    with pytest.raises(ConfigurationError, match="in the order of their progress"):
        build({"ppo": {"entropy_schedule": [[0.5, 1], [0.5, 0]]}})


@pytest.mark.parametrize("section", ["replay", "learner", "actor", "evaluation"])
def test_metrics_are_served_at_a_port_at_any_port_or_at_none(section: str) -> None:
    for text, meant in ((9433, 9433), ("9433", 9433), (0, 0), ("0", 0), ("auto", "auto")):
        assert getattr(build({section: {"metrics_port": text}}), section).metrics_port == meant
    for wrong in (-1, 65_536, "any", "", "none"):
        expected = rf"^{section}\.metrics_port must be a port, 0 for none, or auto for any free port; got {wrong!r}"
        with pytest.raises(ConfigurationError, match=expected):
            build({section: {"metrics_port": wrong}})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "fd77::11", "node-1.cluster.example.org", "localhost"])
def test_a_host_for_metrics_is_a_name_or_an_address(host: str) -> None:
    assert build({"telemetry": {"metrics_host": host}}).telemetry.metrics_host == host


def test_keys_of_infos_are_a_list_of_different_names() -> None:
    given = build({"environment": {"info_metrics": "success,final.distance"}}).environment.info_metrics
    assert given == ("success", "final.distance")


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (["a", "b", "a"], "must have different keys; got a, b, a"),
        (["a b"], "letters, digits and _ . / -, which begin with a letter or _; got 'a b'"),
        ([f"k{each}" for each in range(17)], "at most 16"),
    ],
)
def test_other_keys_of_infos_are_refused(keys: list[str], reason: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        build({"environment": {"info_metrics": keys}})
    assert reason in str(refused.value)


def test_brackets_around_an_address_of_a_host_are_removed() -> None:
    assert build({"telemetry": {"metrics_host": "[fd77::11]"}}).telemetry.metrics_host == "fd77::11"


@pytest.mark.parametrize("host", ["node1:9433", "127.0.0.1:9433", "[::1]:9433", "unix:x", "a b", "", "node1\n"])
def test_a_host_with_a_port_and_one_that_is_none_are_refused(host: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^telemetry\.metrics_host must .*; got "):
        build({"telemetry": {"metrics_host": host}})


@pytest.mark.parametrize("section", ["replay", "learner"])
def test_more_actors_than_the_store_has_slots_are_refused(section: str) -> None:
    assert getattr(build({section: {"max_actors": MAX_SLOTS}}), section).max_actors == MAX_SLOTS
    with pytest.raises(
        ConfigurationError, match=rf"^{section}\.max_actors must be a whole number from 1 to 4,096; got {MAX_SLOTS + 1}"
    ):
        build({section: {"max_actors": MAX_SLOTS + 1}})


@pytest.mark.parametrize(
    ("values", "refusal"),
    [
        ({"PPO": {"epochs": 4}}, "unknown setting PPO; did you mean ppo?"),
        ({"ppo": {"epochs": 4}, "PPO": {"epochz": 4}}, "unknown setting PPO; did you mean ppo?"),
        ({"ppo": {"EPOCHS": 4}}, "unknown setting ppo.EPOCHS; did you mean ppo.epochs?"),
        ({"ppo": {"learning-rat": 1.0}}, "unknown setting ppo.learning-rat; did you mean ppo.learning_rate?"),
        ({"total_step": 5}, "unknown setting total_step; did you mean run.total_steps?"),
        ({"ppo": {"batch_segments": 5}}, "unknown setting ppo.batch_segments; did you mean sampling.batch_segments?"),
        ({"zzzz": {}}, "unknown setting zzzz; `penstock train --help-all` lists all settings"),
    ],
)
def test_an_unknown_name_is_refused_with_a_suggestion(values: dict[str, object], refusal: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        build(values)
    assert str(caught.value) == refusal


@pytest.mark.parametrize("key", ["kwargs", "training_kwargs"])
def test_an_argument_of_an_environment_may_be_a_list_or_a_table(key: str) -> None:
    arguments = {"desc": ["SF", "FG"], "goal": {"at": [1, 2.5], "name": None}, "nothing": None}
    config = build({"environment": {key: arguments}})
    assert getattr(config.environment, key) == arguments
    assert round_trip(config) == config


@pytest.mark.parametrize("value", [object(), [1, object()], {"a": object()}])
def test_an_argument_of_another_type_is_refused(value: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        build({"environment": {"kwargs": {"desc": value}}})
    assert str(caught.value).startswith("environment.kwargs.desc must be a number, true, false, text, None, ")
    assert "; got <object object at " in str(caught.value)


def test_all_errors_are_reported_together() -> None:
    with pytest.raises(ConfigurationError, match=r"ppo\.epochs.*run\.sed|run\.sed.*ppo\.epochs"):
        build({"ppo": {"epochs": -1}, "run": {"sed": 4}})


@pytest.mark.parametrize(
    ("degree", "fresh", "environments", "opens"),
    [
        (0, 8, 8, True),
        (0, 8, 4, True),
        (0, 8, 3, False),
        (0, 8, 16, False),
        (1, 8, 8, True),
        (1, 8, 9, False),
        (2, 8, 16, True),
        (2, 8, 17, False),
        (1, 8, 3, True),
    ],
)
def test_a_gate_that_could_never_open_is_refused(degree: int, fresh: int, environments: int, opens: bool) -> None:
    values: dict[str, object] = {
        "sampling": {"batch_segments": 2 * fresh, "fresh_fraction": 0.5, "off_policy_degree": degree},
        "actor": {"environments": environments},
    }
    if opens:
        assert build(values).sampling.fresh_segments == fresh
    else:
        with pytest.raises(ConfigurationError, match=f"actor.environments {environments}"):
            build(values)


def test_a_batch_without_a_fresh_segment_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="leaves no fresh segment"):
        build({"sampling": {"batch_segments": 2, "fresh_fraction": 0.1}, "actor": {"environments": 1}})


def test_normalisation_without_fresh_segments_is_refused() -> None:
    values: dict[str, object] = {"sampling": {"fresh_fraction": 0.0}}
    with pytest.raises(ConfigurationError, match=r"normalise_observations and policy\.normalise_returns to false"):
        build(values)
    plain = {**values, "policy": {"normalise_observations": False, "normalise_returns": False}}
    assert build(plain).sampling.fresh_segments == 0
    with pytest.raises(ConfigurationError, match="requires a single replay service"):
        build({**plain, "train": {"replay_shards": 2}})


def test_environment_variables_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK__PPO__EPOCHS", "7")
    assert Config().ppo.epochs == 10


def test_a_configuration_cannot_be_changed() -> None:
    config = Config()
    with pytest.raises(ConfigurationError, match=r"config\.changed\(epochs=\.\.\.\) returns another"):
        config.ppo.epochs = 3  # type: ignore[misc]


def test_later_layers_override_individual_keys() -> None:
    below: dict[str, object] = {"ppo": {"epochs": 4, "discount": 0.9}, "run": {"seed": 1}}
    above: dict[str, object] = {"ppo": {"epochs": 5}, "environment": {"id": "A-v0"}}
    assert merge(below, above) == {
        "ppo": {"epochs": 5, "discount": 0.9},
        "run": {"seed": 1},
        "environment": {"id": "A-v0"},
    }
    assert below["ppo"] == {"epochs": 4, "discount": 0.9}


def test_a_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    for content in (b"[ppo\nepochs", b"\xff\xfe\x00"):
        path.write_bytes(content)
        with pytest.raises(ConfigurationError, match="is not valid TOML"):
            load_toml(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="can't read the configuration"):
        load_toml(tmp_path / "gone.toml")


TWO = [{"g": 9.0}, {"g": 11.0, "name": "a, b"}]


@pytest.mark.parametrize("given", [TWO, json.dumps(TWO), ", ".join(map(json.dumps, TWO))])
def test_variants_are_given_as_tables_or_as_json(given: object) -> None:
    environment = build({"environment": {"variants": given, "kwargs": {"g": 1.0, "mass": 2}}}).environment
    assert environment.variants == ({"g": 9.0}, {"g": 11.0, "name": "a, b"})
    assert environment.variant_kwargs == ({"g": 9.0, "mass": 2}, {"g": 11.0, "mass": 2, "name": "a, b"})
    assert environment.variant_names == ("g=9.0", "g=11.0, name=a, b")


def test_an_empty_table_is_the_plain_variant_and_no_table_is_one_environment() -> None:
    assert build({"environment": {"variants": [{}, {"g": 1}]}}).environment.variant_names == ("plain", "g=1")
    plain = build({"environment": {"kwargs": {"g": 1}}}).environment
    assert (plain.variant_kwargs, plain.variant_names) == (({"g": 1},), ())


def test_variants_and_temperatures_are_unchanged_by_toml() -> None:
    config = build(
        {
            "environment": {"variants": [{"g": 9, "name": "x"}, {}]},
            "actor": {"lowest_temperature": 0.5, "highest_temperature": 3.0},
        }
    )
    assert round_trip(config) == config
    assert round_trip(build({})).environment.variants == ()


def test_variants_may_be_an_array_of_tables_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[environment]\nid = 'Pendulum-v1'\n[[environment.variants]]\ng = 9.0\n[[environment.variants]]\n")
    assert build(load_toml(path)).environment.variants == ({"g": 9.0}, {})


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"environment": {"variants": "g=9"}}, r"environment\.variants must be a list of tables in JSON.*'g=9'"),
        ({"environment": {"variants": "[3]"}}, r"environment\.variants must be a list of tables in JSON; got 3"),
        (
            {"environment": {"variants": [{}] * 3, "vary": "actors"}},
            r"2 actors are too few for 3 environment\.variants.*vary actors; set it to auto, raise train\.actors",
        ),
        ({"environment": {"vary": "episodes"}}, r"vary episodes needs environment\.variants, and there is none"),
        (
            {"environment": {"variants": [{}], "vary": "episodes", "vectorization": "native"}},
            r"environment\.vary episodes needs single environments, and environment\.vectorization is native",
        ),
        (
            {"environment": {"variants": [{}] * 3}, "sampling": {"collection": "error"}},
            r"sampling\.collection error needs segments of one variant each.*set it to return or learnability",
        ),
        (
            {"environment": {"variants": [{}] * 3}, "train": {"actors": 3}, "evaluation": {"episodes": 2}},
            r"2 episodes can't be spread over 3.*evaluation\.episodes",
        ),
        (
            {"actor": {"lowest_temperature": 0.0}},
            r"actor\.lowest_temperature must be a number from 0.01 to 100; got 0\.0",
        ),
        (
            {"actor": {"highest_temperature": math.inf}},
            r"actor\.highest_temperature must be a number from 0.01 to 100; got inf",
        ),
        (
            {"actor": {"highest_temperature": math.nan}},
            r"actor\.highest_temperature must be a number from 0.01 to 100; got nan",
        ),
        ({"actor": {"lowest_temperature": 2.0}}, r"lowest_temperature 2 exceeds actor\.highest_temperature 1"),
        (
            {"actor": {"highest_temperature": 2.0}, "train": {"actors": 1}},
            r"a single actor can't have temperatures from 1 to 2; raise train\.actors",
        ),
    ],
)
def test_impossible_variants_and_temperatures_are_refused(values: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        build(values)


def test_as_many_variants_as_actors_and_episodes_are_accepted() -> None:
    values = {"environment": {"variants": [{}] * 3}, "train": {"actors": 3}, "evaluation": {"episodes": 3}}
    assert len(build(values).environment.variant_kwargs) == 3


def test_a_single_actor_may_have_any_temperature() -> None:
    actor = {"lowest_temperature": 2.0, "highest_temperature": 2.0}
    assert build({"actor": actor, "train": {"actors": 1}}).actor.lowest_temperature == 2.0


def test_a_burn_in_without_memory_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"needs policy\.memory"):
        build({"ppo": {"burn_in_steps": 4}})


@pytest.mark.parametrize(("kind", "parts"), [("gru", 1), ("lstm", 2)])
def test_segments_record_the_state_of_the_chosen_memory(kind: str, parts: int) -> None:
    config = build({"policy": {"memory": kind, "memory_size": 32}, "ppo": {"burn_in_steps": 4}})
    assert config.recorded == {"unroll_length": 32, "memory": (parts, 32), "burn_in": 4}
    assert build({}).recorded["memory"] is None


@pytest.mark.parametrize(
    "values",
    [
        {"ppo": {"target_kl": None}},
        {"run": {"total_steps": None, "total_minutes": 3.0}},
        {"evaluation": {"interval_steps": None, "interval_minutes": 2.0}},
    ],
)
def test_a_setting_that_was_unset_remains_unset_in_toml(values: dict[str, object]) -> None:
    config = build(values)
    assert round_trip(config) == config
    assert config.changed({}) == config


@pytest.mark.parametrize("text", ["none", "None"])
@pytest.mark.parametrize(
    ("section", "key"),
    [("policy", "memory"), ("policy", "moves"), ("ppo", "target_kl"), ("replay", "capacity_bytes"), ("run", "dir")],
)
def test_none_unsets_a_setting_unless_it_is_a_text(section: str, key: str, text: str) -> None:
    assert getattr(getattr(build({section: {key: text}}), section), key) == (text if key == "dir" else None)


def test_a_setting_that_cannot_be_unset_refuses_none() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^ppo\.learning_rate must be a number above 0 and at most 1; got 'none'"
    ):
        build({"ppo": {"learning_rate": "none"}})


def test_bounds_of_the_wanted_actors_that_contradict_each_other_are_refused_with_values_that_work() -> None:
    with pytest.raises(ConfigurationError, match=r"most_wanted_actors 2 is below the 3 .*; set it to 3 or more"):
        build({"learner": {"least_wanted_actors": 3, "most_wanted_actors": 2}})
    with pytest.raises(ConfigurationError, match=r"most_wanted_actors 9 exceeds learner\.max_actors 8.*to 8 or less"):
        build({"learner": {"max_actors": 8, "most_wanted_actors": 9}})
    config = build({"learner": {"max_actors": 8}, "train": {"replay_shards": 2}})
    assert (config.least_wanted_actors, config.most_wanted_actors) == (2, 8)


@pytest.mark.parametrize(
    "values",
    [
        {"run": {"dir": "runs/caf\udce9"}},
        {"environment": {"id": "/caf\udce9/my.py:Env"}},
        {"environment": {"imports": ["a", "caf\udce9.py"]}},
        {"environment": {"kwargs": {"map": [{"caf\udce9": 1}]}}},
        {"environment": {"variants": [{"map": ("caf\udce9",)}]}},
        {"replay": {"folder": "caf\udce9"}},
        {"policy": {"module": "caf\udce9.py:Net"}},
    ],
)
def test_a_path_that_is_not_utf_8_is_refused(values: dict[str, object]) -> None:
    ((section, settings),) = values.items()
    assert isinstance(settings, dict)
    (key,) = settings
    expected = rf"^{section}\.{key}[.\w]* '[^\n]*caf\\udce9[^\n]*' is not text in UTF-8, [^\n]*; rename the file or"
    with pytest.raises(ConfigurationError, match=expected):
        build(values)
