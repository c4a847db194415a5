"""Names of settings without their section, and the names that other libraries use.

A setting whose key is in one section alone may be given without it: `--learning-rate`, or `total_steps = 1e6` at the
top of a file. Names of other libraries are accepted if they have the same meaning; others are answered with the name,
the unit and the number that Penstock uses.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.config.answers import ANSWERS
from penstock.config.removed import reason_of
from penstock.config.sections import Sections, fields, setting_names
from penstock.config.setting_types import read_bool, read_table
from penstock.config.wanted import choices
from penstock.errors import ConfigurationError
from penstock.machine.environment_arguments import NONE
from penstock.machine.spelling import similar

SHORT = {
    "env_id": "environment.id",
    "env_import": "environment.imports",
    "run_dir": "run.dir",
    "envs_per_actor": "actor.environments",
}
"""Penstock's own short names that are not keys of settings."""


@dataclass(frozen=True, slots=True)
class Alias:
    """The name of a setting in another library.

    Attributes:
        setting: Name of the setting, as section.key.
        is_flag: Whether the name may be given without a value, which means true.
        convert: Returns the value of the setting, and raises `ValueError` with the accepted values. None: the value is
            the same.
        unit: Unit of the setting, if other libraries count something else; else empty.
    """

    setting: str
    is_flag: bool = False
    convert: Callable[[object], object] | None = None
    unit: str = ""


_STEPS = "environment steps of all actors, not updates"
_VALUES = "standard deviations of the return, unless policy.normalise_returns is false"
_RANGES = "halves of the action range"


def _run_folder(value: object) -> object:
    """Returns the folder of a run that is given by a name or a path."""
    return f"runs/{value}" if isinstance(value, str) and value and "/" not in value else value


def _degree(value: object) -> object:
    modes = {"blocking": 0, "sync": 0, "synchronous": 0, "async": 1, "asynchronous": 1, "nonblocking": 1}
    if value not in modes:
        raise ValueError(f"must be blocking or async; got {value!r}")
    return modes[str(value)]


def _choice(if_true: object, if_false: object) -> Callable[[object], object]:
    return lambda value: if_true if read_bool(value) else if_false


def _table(value: object) -> object:
    if value in (None, NONE, "none"):
        return {}
    return read_table(value) if isinstance(value, str) else value


def _minutes(value: object) -> object:
    try:
        return float(str(value)) / 60.0
    except ValueError:
        raise ValueError(f"must be a number of seconds; got {value!r}") from None


def _logarithm(value: object) -> object:
    try:
        return math.log(float(str(value)))
    except ValueError:
        raise ValueError(f"must be a standard deviation above 0; got {value!r}") from None


def _project(value: object) -> object:
    return fields()["tracking.project"].default if value in (None, NONE, "none") else value


def _activation(value: object) -> object:
    """Returns the name of an activation that may be given as a class of torch or as its name, such as nn.ReLU."""
    name = str(getattr(value, "__name__", value)).rpartition(".")[2].lower()
    known = choices(fields()["policy.activation"])
    if name not in known:
        raise ValueError(f"must be {' or '.join(known)}, or the network your own (policy.module); got {name!r}")
    return name


ALIASES = {
    **dict.fromkeys(("env", "env_name", "create_env_fn"), Alias("environment.id")),
    **dict.fromkeys(("env_kwargs", "env_config"), Alias("environment.kwargs", convert=_table)),
    **dict.fromkeys(("env_wrapper", "wrapper_class"), Alias("environment.wrappers")),
    "env_framestack": Alias("environment.frame_stack"),
    **dict.fromkeys(("num_workers", "n_workers", "num_actors", "num_env_runners"), Alias("train.actors")),
    **dict.fromkeys(("num_envs_per_worker", "num_envs_per_env_runner"), Alias("actor.environments")),
    **dict.fromkeys(("rollout", "bptt_horizon"), Alias("actor.unroll_length")),
    **dict.fromkeys(("timesteps", "total_timesteps", "n_timesteps"), Alias("run.total_steps")),
    **dict.fromkeys(("train_for_env_steps", "total_frames"), Alias("run.total_steps")),
    "train_for_seconds": Alias("run.total_minutes", convert=_minutes),
    "lr": Alias("ppo.learning_rate"),
    "gamma": Alias("ppo.discount"),
    **dict.fromkeys(("gae_lambda", "lambda", "lmbda"), Alias("ppo.trace_decay")),
    **dict.fromkeys(("clip_param", "clip_coef", "ppo_clip_ratio", "clip_epsilon"), Alias("ppo.clip_range")),
    **dict.fromkeys(("clip_range_vf", "vf_clip_coef", "ppo_clip_value"), Alias("ppo.value_clip_range", unit=_VALUES)),
    **dict.fromkeys(("value_coef", "vf_coef", "vf_loss_coeff", "value_loss_coeff"), Alias("ppo.value_coefficient")),
    **dict.fromkeys(("critic_coeff", "critic_coef"), Alias("ppo.value_coefficient")),
    **dict.fromkeys(("entropy_coef", "ent_coef", "entropy_coeff"), Alias("ppo.entropy_coefficient")),
    "exploration_loss_coeff": Alias("ppo.entropy_coefficient"),
    **dict.fromkeys(("max_grad_norm", "grad_clip", "clip_norm"), Alias("ppo.max_gradient_norm")),
    **dict.fromkeys(
        ("norm_adv", "normalize_advantage", "normalize_advantages"), Alias("ppo.normalise_advantages", is_flag=True)
    ),
    **dict.fromkeys(
        ("normalize_input", "norm_obs", "normalize_observations"), Alias("policy.normalise_observations", is_flag=True)
    ),
    **dict.fromkeys(("normalize_returns", "norm_reward"), Alias("policy.normalise_returns", is_flag=True)),
    "anneal_lr": Alias("ppo.learning_rate_schedule", is_flag=True, convert=_choice("linear", "constant")),
    **dict.fromkeys(("num_epochs", "n_epochs", "update_epochs", "num_sgd_iter"), Alias("ppo.epochs")),
    **dict.fromkeys(("num_minibatches", "num_batches_per_epoch"), Alias("ppo.minibatches")),
    "with_vtrace": Alias("ppo.v_trace", is_flag=True),
    **dict.fromkeys(("vtrace_rho", "vtrace_rho_clip"), Alias("ppo.rho_clip")),
    **dict.fromkeys(("vtrace_c", "vtrace_c_clip"), Alias("ppo.trace_clip")),
    **dict.fromkeys(("encoder_mlp_layers", "fcnet_hiddens", "num_cells"), Alias("policy.hidden_sizes")),
    **dict.fromkeys(
        ("activation_fn", "fcnet_activation", "nonlinearity", "activation_class"),
        Alias("policy.activation", convert=_activation),
    ),
    **dict.fromkeys(
        ("vf_share_layers", "actor_critic_share_weights"),
        Alias("policy.trunk", is_flag=True, convert=_choice("shared", "separate")),
    ),
    "log_std_init": Alias("policy.initial_log_std", unit=_RANGES),
    "initial_stddev": Alias("policy.initial_log_std", convert=_logarithm, unit=_RANGES),
    "adaptive_stddev": Alias("policy.state_dependent_std", is_flag=True),
    "free_log_std": Alias("policy.state_dependent_std", is_flag=True, convert=_choice(False, True)),
    "squash_output": Alias("policy.squash_actions", is_flag=True),
    "rnn_type": Alias("policy.memory"),
    **dict.fromkeys(("rnn_size", "lstm_hidden_size", "lstm_cell_size"), Alias("policy.memory_size")),
    **dict.fromkeys(("per_alpha", "prio_alpha"), Alias("sampling.alpha")),
    **dict.fromkeys(("per_beta", "per_beta_start", "prio_beta0"), Alias("sampling.beta")),
    "weight_sync_interval": Alias("sampling.publish_interval", unit="batches"),
    "sync_mode": Alias("sampling.off_policy_degree", convert=_degree),
    **dict.fromkeys(
        ("async_rl", "async_collection"), Alias("sampling.off_policy_degree", is_flag=True, convert=_choice(1, 0))
    ),
    "enable_async_eval": Alias("evaluation.mode", is_flag=True, convert=_choice("asynchronous", "synchronous")),
    "eval_deterministic": Alias("evaluation.deterministic", is_flag=True),
    "cuda": Alias("learner.device", is_flag=True, convert=_choice("cuda", "cpu")),
    **dict.fromkeys(("log_dir", "exp_name", "run_name", "experiment", "name"), Alias("run.dir", convert=_run_folder)),
    **dict.fromkeys(
        ("use_wandb", "with_wandb", "wandb", "track"),
        Alias("tracking.tracker", is_flag=True, convert=_choice("wandb", None)),
    ),
    **{name: Alias("tracking.tracker", is_flag=True, convert=_choice(name, None)) for name in ("mlflow", "trackio")},
    **dict.fromkeys(("wandb_project_name", "wandb_project"), Alias("tracking.project", convert=_project)),
    "trained_agent": Alias("run.start_from"),
    **dict.fromkeys(("save_interval", "save_freq"), Alias("checkpoint.save_interval", unit=_STEPS)),
    "save_every_sec": Alias("checkpoint.save_interval_minutes", convert=_minutes),
    "keep_checkpoints": Alias("checkpoint.max_checkpoints"),
    **dict.fromkeys(("eval_interval", "eval_freq"), Alias("evaluation.interval_steps", unit=_STEPS)),
    **dict.fromkeys(("eval_episodes", "n_eval_episodes"), Alias("evaluation.episodes")),
}
"""Names of other libraries with the same meaning: of the original documents, Stable-Baselines3, rl-zoo, CleanRL, RLlib,
Sample Factory, PufferLib and TorchRL."""


def setting_of(name: str) -> str | None:
    """Returns the setting, as section.key, of a name without a section; None if there is none."""
    written = spelled(name)
    if written in SHORT:
        return SHORT[written]
    if written in ALIASES:
        return ALIASES[written].setting
    return None if written in ANSWERS else _UNIQUE.get(written)


def short_names(setting: str) -> list[str]:
    """Returns Penstock's own names of a setting besides section.key."""
    key = setting.partition(".")[2]
    short = [name for name, each in SHORT.items() if each == setting]
    return [*short, key] if _UNIQUE.get(key) == setting else short


def spelled(name: str) -> str:
    """Returns a name, which may be an option's, as settings are spelled: with underscores, but not around it."""
    return name.strip().replace("-", "_").strip("_")


class Named(NamedTuple):
    """Values by section, the names without a section that need an answer, with their values, and notes for the user."""

    sections: dict[str, object]
    questions: list[tuple[str, object]]
    notes: list[str]


def in_sections(values: Mapping[str, object]) -> Named:
    """Puts each setting into its section, under its own name. Unknown names remain, for the error.

    Raises `ConfigurationError` if a setting is given twice with different values.
    """
    sections: dict[str, object] = {}
    questions: list[tuple[str, object]] = []
    notes: list[str] = []
    for name, value in values.items():
        if spelled(name) in Sections.model_fields and isinstance(value, Mapping):
            keys = _keys(spelled(name))
            for key, each in value.items():
                _put(sections, spelled(name), spelled(key) if spelled(key) in keys else key, each)
        elif setting := setting_of(name):
            section, _, key = setting.partition(".")
            _put(sections, section, key, _converted(name, value))
            notes += _note(name)
        elif spelled(name) in ANSWERS:
            questions.append((name, value))
        else:
            sections[name] = value
    return Named(sections, questions, notes)


def answered(
    questions: Sequence[tuple[str, object]], with_settings: Callable[[dict[str, object]], Sections]
) -> dict[str, object]:
    """Returns the nested settings that these names stand for. Raises `ConfigurationError` with the answer to others.

    Args:
        questions: The names, with their values.
        with_settings: Returns all settings, with the given ones, which earlier answers have found.
    """
    order, waiting = list(ANSWERS), list(questions)
    found: dict[str, object] = {}
    while waiting:
        waiting.sort(key=lambda question: order.index(spelled(question[0])))
        name, value = waiting.pop(0)
        try:
            answer = ANSWERS[spelled(name)](value, with_settings(found))
        except ValueError as error:
            raise ConfigurationError(f"{name} {error}") from None
        if isinstance(answer, str):
            raise ConfigurationError(f"{name}: {answer}")
        named = in_sections(answer)
        waiting += named.questions
        for section, settings in named.sections.items():
            if not isinstance(settings, dict):
                raise ConfigurationError(f"{name}: it has no {section}; {suggestions(section) or 'remove that'}")
            for key, each in settings.items():
                _put(found, section, key, each)
    return found


def suggestions(name: str) -> str:
    """Returns a sentence about a removed setting, or a question such as "did you mean ppo.epochs?"; or ""."""
    written = spelled(name).lower()
    if reason := reason_of(written):
        return reason
    section, _, key = written.rpartition(".")
    if not section and written in Sections.model_fields:
        return f"did you mean {written}?"
    names = setting_names()
    found = [written] if written in names else [each for each in names if each.partition(".")[2] == key]
    if not found and (setting := setting_of(key)):
        found = [setting]
    if not found and key in ANSWERS:
        # A similar setting would be another thing.
        return f"{key} is a name of another library; give it without {section}" if section else ""
    if not found:
        pool = names if section else [*Sections.model_fields, *SHORT, *_UNIQUE]
        close = similar(written, pool)
        found = [SHORT.get(close, _UNIQUE.get(close, close))] if close else []
    return f"did you mean {' or '.join(found)}?" if found else ""


def _note(name: str) -> list[str]:
    alias = ALIASES.get(spelled(name))
    return [f"{name} is {alias.setting}, which counts {alias.unit}"] if alias and alias.unit else []


def _converted(name: str, value: object) -> object:
    alias = ALIASES.get(spelled(name))
    if alias is None or alias.convert is None:
        return value
    try:
        return alias.convert(value)
    except ValueError as error:
        raise ConfigurationError(f"{name} {error}") from None


def _put(sections: dict[str, object], section: str, key: str, value: object) -> None:
    settings = sections.setdefault(section, {})
    if not isinstance(settings, dict):
        raise ConfigurationError(f"{section} is a section, not a setting; got {settings!r} for it")
    if key in settings and settings[key] != value:
        raise ConfigurationError(f"{section}.{key} is given as {settings[key]!r} and as {value!r}; give it once")
    settings[key] = value


def _keys(section: str) -> frozenset[str]:
    return frozenset(key for each, _, key in (name.partition(".") for name in setting_names()) if each == section)


_COUNTS = Counter(name.partition(".")[2] for name in setting_names())
_UNIQUE = {
    key: name
    for name in setting_names()
    if _COUNTS[key := name.partition(".")[2]] == 1 and key not in ANSWERS and key not in ALIASES
}
"""Settings by their keys, of those that one section alone has."""
