"""Every setting of Penstock, defined once, with its unit and the reason for its default.

A `Config` is frozen and has one section per service and per concern, each in the module of its name or of its service.
All services of a run read the same one. Values are taken from these sources, in order of precedence: command-line
options (`--ppo.epochs 4`), environment variables (`PENSTOCK__PPO__EPOCHS=4`), a TOML file (`--config`), a preset
(`--preset`), the defaults. Unknown keys are errors. Settings that would deadlock are refused (`checks`) before anything
starts.
"""

from penstock.config.configuration import Config, build
from penstock.config.layers import load_toml, merge, parse_toml
from penstock.config.recorded import read_recorded, read_settings
from penstock.config.sections import setting_names
from penstock.config.setting_types import Schedule
from penstock.config.settings.environment import EnvironmentConfig
from penstock.config.settings.evaluation import CheckpointConfig, EvaluationConfig
from penstock.config.settings.policy import PolicyConfig
from penstock.config.settings.ppo import PPOConfig
from penstock.config.settings.run import RunConfig, TelemetryConfig, TrackingConfig, TrainConfig
from penstock.config.settings.sampling import SamplingConfig
from penstock.config.settings.section import Section
from penstock.config.settings.security import SecurityConfig
from penstock.config.settings.services import ActorConfig, Execution, LearnerConfig, Precision, ReplayConfig

__all__ = [
    "ActorConfig",
    "CheckpointConfig",
    "Config",
    "EnvironmentConfig",
    "EvaluationConfig",
    "Execution",
    "LearnerConfig",
    "PPOConfig",
    "PolicyConfig",
    "Precision",
    "ReplayConfig",
    "RunConfig",
    "SamplingConfig",
    "Schedule",
    "Section",
    "SecurityConfig",
    "TelemetryConfig",
    "TrackingConfig",
    "TrainConfig",
    "build",
    "load_toml",
    "merge",
    "parse_toml",
    "read_recorded",
    "read_settings",
    "setting_names",
]
