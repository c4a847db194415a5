"""Action masks from each place where an environment may return them, and masks that are refused."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

import tests.support.environments.tiny  # noqa: F401 - registers Still-v0
from penstock.acting.environments.frames import with_frames
from penstock.acting.environments.vectors import Environments
from penstock.acting.values.leaves import tree_of
from penstock.acting.values.masks import MaskSource, Place
from penstock.errors import ConfigurationError, EnvironmentFailed
from penstock.types.spaces import Tree
from tests.support.environments.made import checked, make_environments, variants_of

ALTERNATIVES = 4
LENGTH = 3
PLACES = [place.name.lower() for place in Place]
PLANE = Box(0.0, 10.0, (1,), np.float32)


def mask_of(step: int, alternatives: int = ALTERNATIVES) -> NDArray[np.int8]:
    """Returns the mask at a step: the action of the step's number is illegal."""
    mask: NDArray[np.int8] = (np.arange(alternatives) != step % alternatives).astype(np.int8)
    return mask


class Masked(gymnasium.Env[Any, Any]):
    """An environment with episodes of three steps that returns its masks in one place, and refuses illegal actions.

    Nowhere, all actions are legal.

    `odd`, if it is given, is the mask in place of the first one after a step.
    """

    resets = 0

    action_masks: Any

    def __init__(self, place: str = "info", odd: Any = None) -> None:
        self._place, self._odd, self._step = place, odd, 0
        self.action_space = Discrete(ALTERNATIVES)
        self.observation_space: Any = Box(0.0, 10.0, (1,), np.float32)
        if place == "observation":
            self.observation_space = Dict(plane=PLANE, action_mask=Box(0, 1, (ALTERNATIVES,), np.int8))
        if place == "method":
            self.action_masks = self._mask

    def _mask(self) -> Any:
        return self._odd[0] if self._odd is not None and self._step else mask_of(self._step)

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        plane = np.array([self._step], np.float32)
        observation = {"plane": plane, "action_mask": self._mask()} if self._place == "observation" else plane
        return observation, {"action_mask": self._mask()} if self._place == "info" else {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        Masked.resets += 1
        self._step = 0
        return self._observe()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._place != "nowhere" and not mask_of(self._step)[action]:
            raise ValueError(f"the action {action} is illegal in step {self._step}")
        self._step += 1
        observation, info = self._observe()
        return observation, 1.0, self._step == LENGTH, False, info


class MaskedVector(SyncVectorEnv):
    """A vector of masked environments, with the method of each if they have it."""

    def __init__(self, num_envs: int, place: str, mode: AutoresetMode) -> None:
        super().__init__([lambda: Masked(place)] * num_envs, autoreset_mode=mode)
        if place == "method":
            self.action_masks = lambda: np.stack(self.call("action_masks"))


def next_step_vector(num_envs: int, place: str = "info") -> MaskedVector:
    return MaskedVector(num_envs, place, AutoresetMode.NEXT_STEP)


def same_step_vector(num_envs: int, place: str = "info") -> MaskedVector:
    return MaskedVector(num_envs, place, AutoresetMode.SAME_STEP)


VECTORS: dict[str, Any] = {"Masked": next_step_vector, "MaskedAtOnce": same_step_vector}
for name, vector in VECTORS.items():
    gymnasium.register(
        f"{name}-v0", lambda **kwargs: Masked(**kwargs), vector_entry_point=vector, disable_env_checker=True
    )


def legal_actions(environments: Environments) -> tuple[NDArray[np.int64]]:
    assert environments.action_mask is not None
    return (environments.action_mask.argmax(1),)


def masks_of_rows(environments: Environments, rows: int) -> list[list[int]]:
    """Takes legal steps and returns the mask of the last environment at each row."""
    environments.reset(list(range(environments.count)))
    masks = []
    for _ in range(rows):
        assert environments.action_mask is not None
        assert environments.action_mask.dtype == np.bool_
        masks.append(environments.action_mask[-1].astype(int).tolist())
        environments.step(legal_actions(environments))
    return masks


EPISODE = [mask_of(step).tolist() for step in range(LENGTH)]
ALL = [1] * ALTERNATIVES


@pytest.mark.parametrize("vectorization", ["sync", "native"])
@pytest.mark.parametrize("place", PLACES)
def test_masks_of_every_place_belong_to_the_observation(place: str, vectorization: str) -> None:
    environments = make_environments("Masked-v0", 3, kwargs={"place": place}, vectorization=vectorization)
    assert environments.spec.mask_bits == ALTERNATIVES
    # A row after an episode's end only resets, and its action is not used.
    assert masks_of_rows(environments, 9) == [*EPISODE, ALL, *EPISODE, ALL, EPISODE[0]]


@pytest.mark.parametrize("place", PLACES)
def test_masks_under_same_step_autoreset_belong_to_the_observation_that_is_acted_on(place: str) -> None:
    environments = make_environments("MaskedAtOnce-v0", 2, kwargs={"place": place}, vectorization="native")
    assert masks_of_rows(environments, 7) == [*EPISODE, *EPISODE, EPISODE[0]]


@pytest.mark.parametrize("use_masks", [True, False])
def test_a_mask_is_no_part_of_an_observation(use_masks: bool) -> None:
    environments = make_environments("Masked-v0", 2, kwargs={"place": "observation"}, use_masks=use_masks)
    assert environments.spec.observation == Tree(tree_of("", "observation", Dict(plane=PLANE)).leaves)
    environments.reset([0, 1])
    assert [leaf.shape for leaf in environments.observation] == [(2, 1)]


@pytest.mark.parametrize("vectorization", ["sync", "native"])
@pytest.mark.parametrize("place", PLACES)
def test_masks_are_not_read_if_they_are_not_used(place: str, vectorization: str) -> None:
    before = Masked.resets
    environments = make_environments(
        "Masked-v0", 2, kwargs={"place": place}, vectorization=vectorization, use_masks=False
    )
    assert (environments.spec.mask_bits, environments.action_mask, Masked.resets) == (0, None, before)
    environments.reset([0, 1])
    environments.step((np.array([1, 1]),))
    assert environments.action_mask is None


def test_an_environment_without_masks_has_none() -> None:
    environments = make_environments("Masked-v0", 2, kwargs={"place": "nowhere"})
    environments.reset([0, 1])
    assert (environments.spec.mask_bits, environments.action_mask) == (0, None)


@pytest.mark.parametrize(("place", "resets"), [("observation", 0), ("method", 0), ("info", 1)])
def test_an_environment_is_reset_to_find_masks_only_if_its_spec_is_not_known(place: str, resets: int) -> None:
    before = Masked.resets
    first = make_environments("Masked-v0", 3, kwargs={"place": place})
    assert Masked.resets - before == resets
    again = make_environments("Masked-v0", 3, kwargs={"place": place}, expected=first.spec)
    assert Masked.resets - before == resets
    assert again.spec == first.spec
    assert masks_of_rows(again, 2) == EPISODE[:2]


def test_frames_and_variants_have_the_masks_of_their_environments() -> None:
    variants = variants_of("Masked-v0", [{"place": "info"}, {"place": "method"}], frames=2)
    assert masks_of_rows(variants.make_mixed(5), 5) == [*EPISODE, ALL, EPISODE[0]]
    assert masks_of_rows(with_frames(make_environments("Masked-v0", 1, kwargs={}), 3), 4) == [*EPISODE, ALL]


@pytest.mark.parametrize("places", [("nowhere", "method"), ("info", "nowhere")])
def test_variants_with_and_without_masks_are_refused_before_a_run(places: tuple[str, str]) -> None:
    first, second = ({"nowhere": 0}.get(place, ALTERNATIVES) for place in places)
    with pytest.raises(ConfigurationError, match=f"action masks of {second} bits and {first} bits as variant 1"):
        checked("Masked-v0", [{"place": place} for place in places])


PLACE_AND_REMEDY = (
    r".* in step 1 of its episode \(Masked-v0\); "
    "(correct it, or set environment.action_masks to false|end the episode where none is left, or correct the mask)"
)


@pytest.mark.parametrize(
    ("odd", "fault"),
    [
        (np.ones(3), r"of 3 elements, where Discrete\(4, start=0\) has 4 alternatives"),
        (np.ones((4, 4)), "of 16 elements"),
        ("left", "of type <U4, where numbers or booleans are expected"),
        (None, "of 0 elements"),
        ([[1], [1, 1]], "of 3 elements"),
        ({"a": [1, 1, 1, 1]}, "of 0 elements"),
        (np.zeros(4, np.int8), "without a legal action"),
        ([False] * 4, "without a legal action"),
    ],
)
@pytest.mark.parametrize("place", PLACES)
def test_a_mask_that_cannot_be_used_fails_its_environment(place: str, odd: Any, fault: str) -> None:
    environments = make_environments("Masked-v0", 2, kwargs={"place": place, "odd": [odd]})
    environments.reset([0, 1])
    expected = f"^environment 0: an action mask from .*{fault}{PLACE_AND_REMEDY}$"
    with pytest.raises(EnvironmentFailed, match=expected) as caught:
        environments.step(legal_actions(environments))
    assert caught.value.environment == 0
    assert "\n" not in str(caught.value)
    assert Place[place.upper()].value in str(caught.value)


def test_an_exception_of_a_vectors_method_is_a_failure_that_names_the_method() -> None:
    def lose() -> NDArray[np.int8]:
        raise RuntimeError("masks lost")

    def lost_vector(num_envs: int) -> MaskedVector:
        vector = next_step_vector(num_envs, "method")
        vector.action_masks = lose
        return vector

    entry: Any = lost_vector
    gymnasium.register("Lost-v0", vector_entry_point=entry)
    environments = make_environments("Lost-v0", 2, kwargs={}, vectorization="native")
    with pytest.raises(
        EnvironmentFailed, match=r"^RuntimeError: masks lost .* in the method action_masks\(\) \(Lost-v"
    ):
        environments.reset([0, 1])


@pytest.mark.parametrize("place", PLACES)
def test_the_check_before_a_run_takes_legal_steps_and_names_the_place(place: str) -> None:
    found = checked("Masked-v0", [{"place": place}])
    assert (found.spec.mask_bits, found.warnings) == (ALTERNATIVES, [])
    assert found.notices == [f"Masked-v0: action masks from {Place[place.upper()].value}, 4 bits"]
    with pytest.raises(ConfigurationError, match=r"^[^\n]*without a legal action[^\n]*Masked-v0[^\n]*; [^\n]*$"):
        checked("Masked-v0", [{"place": place, "odd": [np.zeros(4, np.int8)]}])


def test_the_check_before_a_run_finds_no_masks_where_there_are_none() -> None:
    found = checked("Masked-v0", [{"place": "nowhere"}])
    assert (found.spec.mask_bits, found.notices) == (0, [])


BUTTONS, MOVES = MultiBinary(2), MultiDiscrete([2, 3])
NESTED = Dict(buttons=BUTTONS, force=PLANE, move=Tuple([Discrete(2), MOVES]))
FLAT = [1, 0, 1, 1, 0, 1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    "mask",
    [
        np.array(FLAT),
        FLAT,
        tuple(FLAT),
        np.array(FLAT, np.float32),
        np.array(FLAT, np.bool_),
        {"buttons": [1, 0, 1, 1], "move": ([0, 1], [1, 1, 1, 0, 0])},
        {"move": (np.array([0, 1]), ([1, 1], np.array([1, 0, 0]))), "buttons": np.array([[1, 0], [1, 1]])},
        {"buttons": ((1, 0), (1, 1)), "force": None, "move": [np.array([0, 1]), [[1, 1], [1, 0, 0]]]},
    ],
)
def test_a_mask_is_flat_or_nested_like_the_action(mask: Any) -> None:
    source = MaskSource(Place.INFO, tree_of("", "action", NESTED))
    assert source.bits == len(FLAT)
    row = source.row(mask)
    assert row.dtype == np.bool_
    assert row.astype(int).tolist() == FLAT


@pytest.mark.parametrize(
    "masks",
    [
        np.array([FLAT, [1] * 11]),
        {
            "buttons": np.array([[1, 0, 1, 1], [1] * 4]),
            "move": (np.array([[0, 1], [1, 1]]), np.array([[1, 1, 1, 0, 0], [1] * 5])),
        },
        {
            "buttons": np.array([[[1, 0], [1, 1]], [[1, 1], [1, 1]]]),
            "move": (
                np.array([[0, 1], [1, 1]]),
                (np.array([[1, 1], [1, 1]]), np.array([[1, 0, 0], [1, 1, 1]])),
            ),
        },
    ],
)
def test_masks_of_a_vector_are_flat_or_nested_like_the_action(masks: Any) -> None:
    rows = MaskSource(Place.INFO, tree_of("", "action", NESTED)).rows(masks, 2)
    assert rows.astype(int).tolist() == [FLAT, [1] * 11]


@pytest.mark.parametrize(
    "mask",
    [[0, 1, 1, 0, 1, 0, 0, 1, 1], ({"c": [1, 0, 1], "b": [0, 1]}, {"b": [1, 1], "a": [0, 0]})],
    ids=["flat", "nested"],
)
def test_a_mask_is_nested_like_a_tuple_of_dicts(mask: Any) -> None:
    action = Tuple([Dict(b=Discrete(2), c=Discrete(3)), Dict(a=Discrete(2), b=Discrete(2))])
    row = MaskSource(Place.INFO, tree_of("", "action", action)).row(mask)
    assert row.astype(int).tolist() == [0, 1, 1, 0, 1, 0, 0, 1, 1]


@pytest.mark.parametrize("masks", [np.ones((2, 10)), {"buttons": np.ones((2, 4))}, {"buttons": np.ones(3)}, None, "ab"])
def test_masks_of_a_vector_with_another_size_are_refused_in_one_line(masks: Any) -> None:
    with pytest.raises(ConfigurationError, match=r'^an action mask from info\["action_mask"\] [^\n]*; correct it, or'):
        MaskSource(Place.INFO, tree_of("", "action", NESTED)).rows(masks, 2)


def test_every_choice_needs_a_legal_action() -> None:
    source = MaskSource(Place.METHOD, tree_of("", "action", NESTED))
    rows = np.array([FLAT, FLAT, FLAT], np.bool_)
    assert source.find_illegal(rows) is None
    # Choice 2 is the move's Discrete, after two buttons.
    rows[1, 4:6] = False
    found = source.find_illegal(rows)
    assert found is not None
    assert found[0] == 1
    assert "an action mask from the method action_masks() without a legal action in choice 2; " in found[1]


def test_the_highest_action_of_a_mask_is_legal_in_every_choice() -> None:
    source = MaskSource(Place.METHOD, tree_of("", "action", NESTED))
    last = [0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 1]
    buttons, force, direction, pair = source.highest(np.array([FLAT, last], np.bool_))
    assert buttons.tolist() == [[0, 0], [1, 1]]
    assert force.tolist() == [[0.0], [0.0]]
    assert direction.tolist() == [1, 1]
    assert pair.tolist() == [[0, 0], [1, 2]]
    for leaf, space in zip((buttons, force, direction, pair), tree_of("", "action", NESTED).spaces, strict=True):
        assert (leaf.dtype.name, leaf.shape[1:]) == space.action_array


def test_a_part_named_action_mask_is_observed_if_actions_are_no_choices() -> None:
    space, action = Dict(action_mask=PLANE, plane=PLANE), Box(-1.0, 1.0, (2,), np.float32)
    environments = make_environments("Still-v0", 1, kwargs={"observation_space": space, "action_space": action})
    assert [leaf.name for leaf in environments.spec.observation.leaves] == ["action_mask", "plane"]
    assert environments.spec.mask_bits == 0
