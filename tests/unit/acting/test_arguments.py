"""Text in place of a boolean argument is refused, because an environment would treat it as true."""

import pytest

from penstock.errors import ConfigurationError
from tests.support.environments.made import make_environments


@pytest.mark.parametrize("text", ["no", "FALSE", "off", "false "])
@pytest.mark.parametrize("vectorization", ["sync", "native"])
def test_text_is_refused_where_the_default_is_a_boolean(text: str, vectorization: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_environments("CartPole-v1", 1, kwargs={"sutton_barto_reward": text}, vectorization=vectorization)
    assert str(caught.value) == (
        "the argument sutton_barto_reward of CartPole-v1 must be True or False (its default is False), not the text"
        f" {text!r}; write sutton_barto_reward=True or sutton_barto_reward=False"
    )


def test_text_for_a_default_of_none_and_booleans_are_accepted() -> None:
    make_environments("CartPole-v1", 1, kwargs={"render_mode": "rgb_array", "sutton_barto_reward": True}).close()
