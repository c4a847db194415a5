"""Text that was meant as a truth value is found before an environment takes it for true."""

import pytest

from penstock.acting.environments import make_environments
from penstock.errors import ConfigurationError


@pytest.mark.parametrize("text", ["no", "FALSE", "off", "false "])
@pytest.mark.parametrize("vectorization", ["sync", "native"])
def test_text_is_refused_where_the_default_is_a_truth_value(text: str, vectorization: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_environments("CartPole-v1", 1, kwargs={"sutton_barto_reward": text}, vectorization=vectorization)
    assert str(caught.value) == (
        "the argument sutton_barto_reward of CartPole-v1 is True or False (its default is False), got the text"
        f" {text!r}; write sutton_barto_reward=True or sutton_barto_reward=False"
    )


def test_text_where_the_default_is_none_and_truth_values_are_taken() -> None:
    make_environments("CartPole-v1", 1, kwargs={"render_mode": "rgb_array", "sutton_barto_reward": True}).close()
