import pytest

from benchmarks.actor_steps import LIBRARIES, read
from penstock.algo.network import Network
from penstock.algo.policies import Policy
from penstock.apps.environments import make_configured
from penstock.presets import preset
from tests.support.training.policies import weights_of


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_reading_is_the_processor_time_of_a_step(library: str) -> None:
    config = preset("cartpole")
    environments = make_configured(config.environment, 4)
    weights = weights_of(Policy(environments.spec, Network(**dict(config.policy))), 0)
    readings = read(config, environments, weights, LIBRARIES[library], seconds=0.01)
    environments.close()
    assert readings and min(readings) > 0.0
