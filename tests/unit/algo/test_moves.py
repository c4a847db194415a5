"""The network for moves compared with loops over cells, and the policies and settings that it is refused for."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch

from penstock.algo import weights as policy_weights
from penstock.algo.distributions import Categorical, unpack_mask
from penstock.algo.moves import Moves
from penstock.algo.network import Network
from penstock.algo.policies import Inputs, Policy
from penstock.algo.spaces import check_spaces
from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.types.spaces import (
    BoxSpace,
    DiscreteSpace,
    Encoder,
    EnvironmentSpec,
    Leaf,
    MultiDiscreteSpace,
    Space,
    Tree,
)
from tests.support.training.policies import fresh_policy, weights_of

ROWS, COLUMNS, KINDS = 3, 6, 4
CELLS = ROWS * COLUMNS
BOARD = BoxSpace("uint8", (ROWS, COLUMNS), (0.0,), (float(KINDS),))
ANNOUNCED = MultiDiscreteSpace((2,), (KINDS, KINDS), (0, 0))


def spec_of_board(board: Space = BOARD, *, nested: bool = True, actions: int = CELLS**2) -> EnvironmentSpec:
    tree = Tree((Leaf(("board",), board), Leaf(("next",), ANNOUNCED))) if nested else Tree.of(board)
    return EnvironmentSpec("Game-v0", tree, Tree.of(DiscreteSpace(actions)), mask_bits=actions)


def policy_of(encoder: Encoder = "one_hot", *, nested: bool = True, board: Space = BOARD) -> Policy:
    name = "board" if nested else "observation"
    network = Network(hidden_sizes=(8,), activation="relu", encoders={name: encoder}, moves=name)
    return fresh_policy(spec_of_board(board, nested=nested), seed=5, network=network)


def boards(count: int = 4) -> torch.Tensor:
    random = np.random.default_rng(2)
    pieces = random.integers(1, KINDS + 1, (count, ROWS, COLUMNS))
    return torch.from_numpy(np.where(random.random(pieces.shape) < 0.5, pieces, 0).astype(np.uint8))


def observations(board: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return board, torch.zeros(*board.shape[:-2], 2, dtype=torch.uint8)


def logits(policy: Policy, board: torch.Tensor) -> torch.Tensor:
    """Returns the logits of all moves up to a constant, <float32>[..., source, target]."""
    observation = observations(board) if len(policy.spec.observation.leaves) == 2 else (board,)
    (part,) = policy.evaluate(Inputs(observation))[0].parts
    assert isinstance(part, Categorical)
    return part.log_probs.detach().reshape(*board.shape[:-2], CELLS, CELLS)


def slow_logits(moves: Moves, board: torch.Tensor) -> torch.Tensor:
    """Computes the logits of one board cell by cell."""

    def outputs(kind: int, row: int, column: int) -> torch.Tensor:
        total = moves.common.bias.clone()  # type: ignore[union-attr]
        for near_row in range(max(0, row - 4), min(ROWS, row + 5)):
            for near_column in range(max(0, column - 4), min(COLUMNS, column + 5)):
                place = near_row - row + 4, near_column - column + 4
                value = int(board[near_row, near_column])
                total += moves.common.weight[:, 1, *place]
                total += moves.common.weight[:, 0, *place] * (value == 0)
                total += moves.own.weight[:, 0, *place] * (value == kind)
        result: torch.Tensor = moves.output(torch.relu(moves.hidden(torch.relu(total))))
        return result

    result = torch.zeros(CELLS, CELLS)
    for source in range(CELLS):
        kind = int(board.reshape(-1)[source])
        if kind:
            loss = outputs(kind, *divmod(source, COLUMNS))[1]
            for target in range(CELLS):
                result[source, target] = outputs(kind, *divmod(target, COLUMNS))[0] + loss
    return result.detach()


def test_the_logits_are_those_of_loops_over_cells() -> None:
    policy, board = policy_of(), boards(1)[0]
    assert isinstance(policy.actor, Moves)
    expected = slow_logits(policy.actor, board).flatten().log_softmax(0).reshape(CELLS, CELLS)
    torch.testing.assert_close(logits(policy, board.unsqueeze(0))[0], expected, atol=1e-5, rtol=1e-5)


def test_exchanged_kinds_have_exchanged_logits() -> None:
    policy, board = policy_of(), boards()
    exchanged = torch.tensor([0, 3, 1, 4, 2], dtype=torch.uint8)[board.long()]
    torch.testing.assert_close(logits(policy, exchanged), logits(policy, board))
    other = board.clone()
    other[0, 0, 0] = other[0, 0, 0] % KINDS + 1
    assert not torch.allclose(logits(policy, other)[0], logits(policy, board)[0])


@pytest.mark.parametrize("nested", [True, False])
def test_the_encoder_of_the_board_does_not_change_the_logits(nested: bool) -> None:
    one_hot, planes = policy_of("one_hot", nested=nested), policy_of("board", nested=nested)
    planes.actor.load_state_dict(one_hot.actor.state_dict())
    assert torch.equal(logits(planes, boards()), logits(one_hot, boards()))


def test_kinds_may_have_any_numbers() -> None:
    shifted = policy_of(board=MultiDiscreteSpace((ROWS, COLUMNS), (KINDS + 1,) * CELLS, (3,) * CELLS))
    torch.testing.assert_close(logits(shifted, boards() + 3), logits(policy_of(), boards()))


def test_leading_dimensions_are_kept() -> None:
    policy, board = policy_of(), boards(6)
    grouped, value = policy.evaluate(Inputs(observations(board.reshape(2, 3, ROWS, COLUMNS))))
    assert value.shape == (2, 3)
    (part,) = grouped.parts
    assert isinstance(part, Categorical)
    torch.testing.assert_close(part.log_probs.reshape(6, CELLS, CELLS), logits(policy, board))


def test_illegal_moves_have_no_gradient_and_legal_ones_reach_every_parameter() -> None:
    policy, board = policy_of(), boards(3)
    mask = torch.zeros(3, CELLS**2, dtype=torch.bool)
    mask[:, [1, 200, 301]] = True
    packed = torch.from_numpy(np.packbits(mask.numpy(), axis=-1, bitorder="little"))
    assert torch.equal(unpack_mask(packed, CELLS**2), mask)
    distribution, value = policy.evaluate(Inputs(observations(board), packed))
    (part,) = distribution.parts
    assert isinstance(part, Categorical)
    assert (part.log_probs.exp() > 0).tolist() == mask.tolist()
    (distribution.entropy().sum() + value.sum()).backward()  # type: ignore[no-untyped-call]
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


def test_bfloat16_changes_only_the_last_digits() -> None:
    policy, board = policy_of(), boards()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = logits(policy, board)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, logits(policy, board), atol=0.05, rtol=0.0)


@pytest.mark.nightly
def test_the_network_is_traced_as_one_graph() -> None:
    policy, board = policy_of(), boards()
    # This backend needs no compiler, and `fullgraph` refuses every break of the graph.
    traced = torch.compile(policy.actor, backend="aot_eager", fullgraph=True)
    prepared = policy.observer.prepare(observations(board), policy.observation_moments)
    torch.testing.assert_close(traced(prepared), policy.actor(prepared))


def test_the_policy_is_restored_from_its_weights_alone() -> None:
    policy = policy_of()
    loaded = policy_weights.load(weights_of(policy, version=3))
    assert loaded.network.moves == "board"
    assert torch.equal(logits(loaded, boards()), logits(policy, boards()))


@pytest.mark.parametrize(
    ("spec", "moves", "encoders", "message"),
    [
        (spec_of_board(), "bord", {}, "policy.moves names 'bord', which is not part of an observation of Game-v0; its"),
        (spec_of_board(nested=False), "board", {}, r"its parts are: observation$"),
        (spec_of_board(), "next", {}, r"MultiDiscrete.*needs a matrix of integers that all have the same bounds"),
        (spec_of_board(BoxSpace("float32", (3, 6), (0.0,), (4.0,))), "board", {}, "needs a matrix of integers"),
        (
            spec_of_board(MultiDiscreteSpace((1, 2), (3, 4), (0, 0)), actions=4),
            "board",
            {},
            "needs a matrix of integers",
        ),
        (spec_of_board(), "board", {"board": "flat"}, "whose encoder is flat for 5 values; set policy.encoders to boa"),
        (
            spec_of_board(BoxSpace("uint8", (3, 6), (0.0,), (60.0,))),
            "board",
            {},
            "whose encoder is board for 61 values; set policy.encoders to board=one_hot",
        ),
        (spec_of_board(actions=18), "board", {}, r"the actions must be Discrete\(324\), source \* 18 \+ target, not"),
    ],
)
def test_spaces_without_moves_between_cells_are_refused(
    spec: EnvironmentSpec, moves: str, encoders: Mapping[str, Encoder], message: str
) -> None:
    check_spaces(spec, encoders)
    with pytest.raises(ConfigurationError, match=message):
        check_spaces(spec, encoders, moves)


@pytest.mark.parametrize("others", [{"trunk": "shared"}, {"memory": "gru"}])
def test_settings_that_the_logits_would_not_use_are_refused(others: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=r"policy.moves computes the logits from the board alone"):
        Config(policy={"moves": "board", **others})
