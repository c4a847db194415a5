"""rl-zoo's settings of PPO for the tasks of `benchmarks.zoo_tasks`, without imports of the peer.

They are those of hyperparams/ppo.yml of https://github.com/DLR-RM/rl-baselines3-zoo at `COMMIT`. It has settings for v4
of the MuJoCo tasks; here they train v5. Values that it leaves out are the defaults of Stable-Baselines3.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

COMMIT = "22e3ff2450fd92033f7f032915e1f64894a09584"
"""The newest commit of rl-zoo when this program was written, of 23 April 2026."""

Values = Mapping[str, float | bool | str]


@dataclass(frozen=True, slots=True)
class Policy:
    """rl-zoo's `policy_kwargs`; both networks have the same hidden layers. The defaults are those of the library.

    Attributes:
        log_std_init: Logarithm of the initial standard deviation of actions.
        ortho_init: Whether weights are orthogonal at first.
        activation: Name of the activation in `torch.nn`.
        hidden_sizes: Sizes of the hidden layers.
    """

    log_std_init: float = 0.0
    ortho_init: bool = True
    activation: str = "Tanh"
    hidden_sizes: tuple[int, ...] = (64, 64)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one task.

    Attributes:
        total_steps: Environment steps of a run (`n_timesteps`).
        environments: Number of environments (`n_envs`).
        ppo: Arguments of PPO. `lin_x` is a schedule that falls linearly from x to 0.
        normalise: Whether observations and returns are normalised (`normalize`).
        policy: Arguments of the policy.
        wrapper: `module:class` of a wrapper of the environment (`env_wrapper`); empty: none.
        tuned: Whether the file marks the settings as tuned for this task.
    """

    total_steps: int
    environments: int
    ppo: Values
    normalise: bool = False
    policy: Policy = field(default_factory=Policy)
    wrapper: str = ""
    tuned: bool = False

    def describe(self) -> str:
        """Returns the settings as text."""
        words = [f"{self.environments} environments", *(f"{name} {value}" for name, value in self.ppo.items())]
        words += ["normalised"] if self.normalise else []
        words += [str(self.policy)] if self.policy != Policy() else []
        return ", ".join([*words, self.wrapper] if self.wrapper else words)


_LUNAR_LANDER = Settings(
    1_000_000,
    16,
    {"n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01},
)

SETTINGS = {
    "CartPole-v1": Settings(
        100_000,
        8,
        {
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": "lin_0.001",
            "clip_range": "lin_0.2",
        },
        tuned=True,
    ),
    "MountainCar-v0": Settings(
        1_000_000,
        16,
        {"n_steps": 16, "gae_lambda": 0.98, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0},
        normalise=True,
    ),
    "MountainCarContinuous-v0": Settings(
        20_000,
        1,
        {
            "batch_size": 256,
            "n_steps": 8,
            "gamma": 0.9999,
            "learning_rate": 7.77e-05,
            "ent_coef": 0.00429,
            "clip_range": 0.1,
            "n_epochs": 10,
            "gae_lambda": 0.9,
            "max_grad_norm": 5,
            "vf_coef": 0.19,
            "use_sde": True,
        },
        normalise=True,
        policy=Policy(log_std_init=-3.29, ortho_init=False),
        tuned=True,
    ),
    "Acrobot-v1": Settings(
        1_000_000,
        16,
        {"n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0},
        normalise=True,
    ),
    "Pendulum-v1": Settings(
        100_000,
        4,
        {
            "n_steps": 1024,
            "gae_lambda": 0.95,
            "gamma": 0.9,
            "n_epochs": 10,
            "ent_coef": 0.0,
            "learning_rate": 1e-3,
            "clip_range": 0.2,
            "use_sde": True,
            "sde_sample_freq": 4,
        },
        tuned=True,
    ),
    "LunarLander-v3": _LUNAR_LANDER,
    "LunarLanderContinuous-v3": _LUNAR_LANDER,
    "MiniGrid-DoorKey-5x5-v0": Settings(
        100_000,
        8,
        {
            "n_steps": 128,
            "batch_size": 64,
            "gae_lambda": 0.95,
            "gamma": 0.99,
            "n_epochs": 10,
            "ent_coef": 0.0,
            "learning_rate": 2.5e-4,
            "clip_range": 0.2,
        },
        normalise=True,
        wrapper="minigrid.wrappers:FlatObsWrapper",
    ),
    "Hopper-v5": Settings(
        1_000_000,
        1,
        {
            "batch_size": 32,
            "n_steps": 512,
            "gamma": 0.999,
            "learning_rate": 9.80828e-05,
            "ent_coef": 0.00229519,
            "clip_range": 0.2,
            "n_epochs": 5,
            "gae_lambda": 0.99,
            "max_grad_norm": 0.7,
            "vf_coef": 0.835671,
        },
        normalise=True,
        policy=Policy(log_std_init=-2, ortho_init=False, activation="ReLU", hidden_sizes=(256, 256)),
        tuned=True,
    ),
    "Walker2d-v5": Settings(
        1_000_000,
        1,
        {
            "batch_size": 32,
            "n_steps": 512,
            "gamma": 0.99,
            "learning_rate": 5.05041e-05,
            "ent_coef": 0.000585045,
            "clip_range": 0.1,
            "n_epochs": 20,
            "gae_lambda": 0.95,
            "max_grad_norm": 1,
            "vf_coef": 0.871923,
        },
        normalise=True,
        tuned=True,
    ),
}
"""Settings by environment id."""
