"""Staleness of stored states, compared with states that are computed row by row."""

import torch

from benchmarks.study import state_report
from benchmarks.study.stored_states import BURN_INS, METHODS, Recording, Seen, measure, record, states_before
from helpers.exact_tasks import LONGEST_STACK
from penstock.algo import weights as policy_weights
from penstock.algo.distributions import Joint
from penstock.algo.policies import Policy
from penstock.config import Config, build

T = 16
"""Steps of a segment; episodes of the task have 80."""


def configuration(*, environments: int, learning_rate: float) -> Config:
    assert LONGEST_STACK > 2 * T
    return build(
        {
            "run": {"total_steps": 12 * T * environments},
            "environment": {"id": "helpers.exact_tasks:Cue-v0"},
            "train": {"actors": 1},
            "actor": {"environments": environments, "unroll_length": T},
            "sampling": {"batch_segments": environments, "fresh_fraction": 1.0},
            # Normalisers change with every batch.
            "policy": {
                "memory": "gru",
                "memory_size": 8,
                "normalise_observations": False,
                "normalise_returns": False,
            },
            "ppo": {"learning_rate": learning_rate, "epochs": 4, "minibatches": 1},
            "evaluation": {"episodes": 1},
        }
    )


def acted_row_by_row(
    policy: Policy, windows: list[Seen], state: torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor, Joint]]:
    """Returns the states before and after each row, and the distributions, as an actor computes them."""
    rows = []
    with torch.no_grad():
        for window in windows:
            for row in range(T):
                observation = tuple(leaf[:, row] for leaf in window.observation)
                distribution, after = policy.act(observation, None, state, window.begun[:, row])
                assert after is not None
                rows.append((state, after, distribution))
                state = after
    return rows


def version(recording: Recording, number: int) -> Policy:
    return policy_weights.load(recording.versions[number])


def shifted(before: Seen, window: Seen, rows: int) -> Seen:
    """Returns the window that begins this many rows earlier."""

    def joined(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return torch.cat([old[:, -rows:], new[:, :-rows]], 1)

    observation = tuple(map(joined, before.observation, window.observation))
    begun = joined(before.begun, window.begun)
    return Seen(window.version, observation, begun, joined(before.valid, window.valid), window.state)


def test_states_that_were_not_stored_are_those_that_the_actor_had() -> None:
    recording = record(configuration(environments=2, learning_rate=1e-2))
    for index in range(1, len(recording.windows)):
        before, window = recording.windows[index - 1 : index + 1]
        assert before.version == index - 1
        rows = acted_row_by_row(version(recording, before.version), [before], before.state)
        carried = torch.where(window.begun[:, :1, None], 0.0, rows[-1][1])
        torch.testing.assert_close(window.state, carried, atol=1e-5, rtol=1e-5)
        for burn_in in BURN_INS:
            torch.testing.assert_close(
                states_before(recording, index, burn_in), rows[T - burn_in][0], atol=1e-5, rtol=1e-5
            )


def test_only_a_zero_state_differs_if_the_parameters_do_not_change() -> None:
    found = measure(record(configuration(environments=2, learning_rate=1e-30)), 1, (0, T - 1))
    # Two environments in 11 windows but the first, without those with one of the two borders of episodes.
    assert 10 <= found.segments <= 20
    for method in set(METHODS) - {"zero"}:
        assert max(*found.state[method], *found.kl[method], *found.value[method]) < 1e-5, method
    assert found.state["zero"][0] > 0.1
    assert found.value["zero"][0] > 10.0 * found.value["stored"][0]


def test_differences_are_those_between_policies_that_act_row_by_row() -> None:
    recording = record(configuration(environments=1, learning_rate=1e-2))
    lag, first, window = 4, recording.windows[0], recording.windows[1]
    # Only the window after the first is measured, so that the exact state begins with the run.
    found = measure(recording, lag, range(T), every=len(recording.windows))
    assert found.segments == 1
    policy = version(recording, window.version + lag)
    exact = acted_row_by_row(policy, [first, window], torch.zeros_like(first.state))[T:]
    from_stored = acted_row_by_row(policy, [window], window.state)
    from_zero = acted_row_by_row(policy, [window], torch.zeros_like(window.state))
    acting = acted_row_by_row(version(recording, window.version), [window], window.state)
    from_four = acted_row_by_row(policy, [shifted(first, window, 4)], states_before(recording, 1, 4))[4:]
    for method, rows in {"zero": from_zero, "stored": from_stored, "burn-in 4": from_four, "policy": acting}.items():
        for row, ((_, mine, own), (_, other, reference)) in enumerate(zip(rows, exact, strict=False)):
            share = float((mine - other).norm() / other.norm())
            assert abs(found.state[method][row] - share) < 1e-4, (method, row)
            kl = sum(
                float(reference.log_prob((action,)).exp() * (reference.log_prob((action,)) - own.log_prob((action,))))
                for action in (torch.tensor([0]), torch.tensor([1]))
            )
            assert abs(found.kl[method][row] - kl) < 1e-5, (method, row)
    assert found.state["stored"][0] > 1e-3
    # Sixteen rows reach back to the beginning of the episode.
    assert max(*found.state["burn-in 16"], *found.kl["burn-in 16"], *found.value["burn-in 16"]) < 1e-5


def test_a_table_has_the_means_over_seeds_at_three_rows() -> None:
    def seed(figure: float) -> state_report.Measured:
        curve = [figure] * len(state_report.ROWS)
        by_method = dict.fromkeys(METHODS, curve)
        of_lag = {"segments": 10, "state": by_method, "kl": by_method, "value": by_method}
        return {str(lag): of_lag for lag in state_report.LAGS}  # type: ignore[misc]

    lines = state_report.table([seed(0.01), seed(0.03)]).splitlines()
    assert "2 seeds, 60 comparisons" in lines[0]
    assert "| 8 | stored | 2 | 2 | 2 | 20 | 20 | 20 | 2 | 2 | 2 |" in lines
    assert len(lines) == 4 + len(state_report.LAGS) * len(METHODS)
