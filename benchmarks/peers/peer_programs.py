"""The peers of `make bench-loop`: where each is installed, and which programs run it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.cleanrl_source import programs
from benchmarks.peers.environment import peer_python
from benchmarks.peers.pufferlib_environment import pufferlib_python


def _nothing() -> list[str]:
    return []


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer.

    Attributes:
        title: Name and version.
        python: Function that installs the peer, if necessary, and returns its interpreter.
        pace: Module of `benchmarks.peers` that does the work of `equal_work`.
        goal: Module of `benchmarks.peers` that trains to a threshold.
        arguments: Function that returns the first arguments of both.
    """

    title: str
    python: Callable[[], Path]
    pace: str
    goal: str
    arguments: Callable[[], list[str]] = _nothing


PEERS = {
    "sb3": Peer("Stable-Baselines3 2.9.2", lambda: peer_python("sb3"), "sb3_pace", "sb3_goal"),
    "cleanrl": Peer(
        "CleanRL's ppo.py",
        lambda: peer_python("cleanrl_gymnasium_1"),
        "cleanrl_pace",
        "cleanrl_goal",
        lambda: [str(programs())],
    ),
    "pufferlib": Peer("PufferLib 3.0.0", pufferlib_python, "pufferlib_pace", "pufferlib_goal"),
    "rllib": Peer("RLlib 2.60.0, PPO", lambda: peer_python("rllib"), "rllib_pace", "rllib_goal"),
    "sample_factory": Peer(
        "Sample Factory 2.1.1, APPO",
        lambda: peer_python("sample_factory"),
        "sample_factory_pace",
        "sample_factory_goal",
    ),
}
"""Peers by name."""
