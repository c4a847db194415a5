"""Registers the games in the folder `games` with Gymnasium: `retro/Catch-Nes-v0`."""

from pathlib import Path

from penstock.acting.environments.emulators.games import register_games

register_games(Path(__file__).parent / "games")
