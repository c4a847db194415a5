"""Texts in the observations of an environment, as rows of tokens that a policy can read. It imports no torch."""

import re
import zlib
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from penstock.acting.values.leaves import is_text, members
from penstock.errors import ConfigurationError

WORDS = 2048
"""Numbers for words. Each word has the number of its hash, so that no vocabulary is needed; two of a thousand different
words share one with a probability of 0.05%."""

_LENGTH = 64
_WORD = re.compile(r"\w+")


class TextTokens(gymnasium.ObservationWrapper[Any, Any, Any]):
    """An environment whose texts are rows of integers, <int64>[length], in place of `Text` and similar spaces.

    For example, where `env` has a mission or an instruction in its observations::

        env = penstock.TextTokens(env, form="words", length=16)
        observation, _ = env.reset(seed=1)

    Number 0 is no token, and fills a row after the last one. Upper and lower case are the same for words, and
    punctuation is left out.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], form: Literal["words", "characters"] = "words", length: int = _LENGTH
    ) -> None:
        """Reads at most `length` words or characters of each text.

        Raises `ConfigurationError` for another form, or if an observation has no text, or one without a set of
        characters.
        """
        super().__init__(env)
        if form not in ("words", "characters"):
            raise ConfigurationError(f"TextTokens reads words or characters, not {form!r}")
        self._form, self._length = form, length
        self.notices = [f"the policy reads the first {length} {form} of a text"]
        self._numbers: dict[tuple[str | int, ...], dict[str, int]] = {}
        self.observation_space = self._space(env.observation_space, ())
        if not self._numbers:
            raise ConfigurationError(f"TextTokens found no text in the observation space {env.observation_space}")

    def observation(self, observation: Any) -> Any:
        """Returns the observation with rows of tokens in place of its texts."""
        return self._read(self.env.observation_space, observation, ())

    def _space(self, space: gymnasium.Space[Any], path: tuple[str | int, ...]) -> gymnasium.Space[Any]:
        if is_text(space):
            characters = getattr(space, "character_list", ())
            if self._form == "characters" and not characters:
                raise ConfigurationError(f"{type(space).__name__} has no set of characters; read its words")
            self._numbers[path] = {each: number for number, each in enumerate(characters, 1)}
            numbers = WORDS if self._form == "words" else len(characters) + 1
            return spaces.MultiDiscrete([numbers] * self._length)
        children = {key: self._space(child, (*path, key)) for key, child in members(space)}
        if isinstance(space, spaces.Dict):
            return spaces.Dict({str(key): child for key, child in children.items()})
        return spaces.Tuple(tuple(children.values())) if isinstance(space, spaces.Tuple) else space

    def _read(self, space: gymnasium.Space[Any], value: Any, path: tuple[str | int, ...]) -> Any:
        if path in self._numbers:
            return self._row(value, self._numbers[path])
        if isinstance(space, spaces.Dict) and isinstance(value, dict):
            return {key: self._read(space.spaces.get(key, space), each, (*path, key)) for key, each in value.items()}
        if isinstance(space, spaces.Tuple) and isinstance(value, tuple):
            return tuple(self._read(space, each, (*path, place)) for place, each in enumerate(value))
        return value

    def _row(self, text: Any, numbers: dict[str, int]) -> NDArray[np.int64] | Any:
        if not isinstance(text, str):
            return text
        row = np.zeros(self._length, np.int64)
        if self._form == "words":
            tokens = [word_number(word) for word in _WORD.findall(text)[: self._length]]
        else:
            tokens = [numbers[each] for each in text if each in numbers][: self._length]
        row[: len(tokens)] = tokens
        return row


def word_number(word: str) -> int:
    """Returns the number of a word, from 1 to `WORDS` - 1, which is the same in every process."""
    return 1 + zlib.crc32(word.lower().encode()) % (WORDS - 1)


def readable(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Returns an environment whose observation is a text alone with the words of the text, and others as they are."""
    return TextTokens(env) if is_text(env.observation_space) else env
