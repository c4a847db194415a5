"""Answers to names of other libraries that stand for something else in Penstock.

The value that switches a part off, and the default of a part that Penstock always has, change nothing and are accepted.
"""

from collections.abc import Callable, Iterable, Mapping

from penstock.config.replay_law import most_minibatches
from penstock.config.sections import Sections
from penstock.config.setting_types import read_bool, read_count, read_scalar, read_table

Answer = Callable[[object, Sections], "str | dict[str, object]"]
"""Returns one line for a value, given the other settings, or the settings that it stands for: nested by section, or by
names without one, which may again be names of other libraries."""

_OFF: tuple[object, ...] = (None, False, "", (), {}, "none", "None")


def _number(value: object) -> int | None:
    """Returns a positive whole number; None for anything else."""
    number = read_count(value)
    return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else None


def _is_left_out(value: object) -> bool:
    """Returns whether a library computes the value, because it is not given."""
    return value in (*_OFF, 0, "0", "auto")


def _environments(value: object, config: Sections) -> str | dict[str, object]:
    number, actors = _number(value), config.train.least_actors
    if number is not None and number % actors == 0:
        return {"actor": {"environments": number // actors}}
    if number is not None and number < actors and "actors" not in config.train.model_fields_set:
        return {"train": {"actors": number}, "actor": {"environments": 1}}
    works = actors * max(1, round((number or actors) / actors))
    return (
        f"there are train.actors times actor.environments environments, so their number must be a multiple of the"
        f" {actors} actors; got {value}. Set it to {works}, or set --actors and --envs-per-actor"
    )


def _iterations(value: object, config: Sections) -> str | dict[str, object]:
    if _is_left_out(value):
        return {}
    fresh = config.sampling.fresh_segments * config.actor.unroll_length
    number = _number(value)
    steps = f"{number} of them are --total-steps {number * fresh}" if number else "set --total-steps"
    return f"the length of a run is given in environment steps. A batch has {fresh} new ones, so {steps}"


def _is_synchronous(config: Sections) -> bool:
    """Returns whether each batch is one window of every environment, as the rollout of a synchronous PPO."""
    return config.degree == 0 and config.sampling.fresh_fraction == 1.0


def _rollout(value: object, config: Sections) -> str | dict[str, object]:
    number, length = _number(value), config.actor.unroll_length
    if _is_synchronous(config):
        return {"actor": {"unroll_length": number or value}}
    environments = config.train.least_actors * config.actor.environments
    rollout = f", here {number} steps of {environments} environments" if number else ""
    return (
        f"add the preset textbook for synchronous rollouts{rollout}. Otherwise remove it: Penstock collects all the"
        f" time, in segments of actor.unroll_length {length} steps, and a batch has sampling.batch_segments"
        f" {config.sampling.batch_segments} of them"
    )


def _minibatch(value: object, config: Sections) -> str | dict[str, object]:
    if _is_left_out(value):
        return {}
    length, segments, parts = config.actor.unroll_length, config.sampling.batch_segments, config.ppo.minibatches
    number, steps = _number(value), segments * length
    if number and _is_synchronous(config):
        return {"ppo": {"minibatches": -(-steps // number)}}
    size = ""
    if number:
        most = most_minibatches(
            segments=segments,
            unroll_length=length,
            recurrent=config.policy.memory is not None,
            normalise=config.ppo.normalise_advantages,
        )
        fitting = min(most, max(1, round(steps / number)))
        number = steps // fitting if fitting == most else number
        size = f" For minibatches of about {number} steps, set --ppo.minibatches {fitting}"
    return (
        f"a batch has {steps} steps, in sampling.batch_segments {segments} segments of {length}, and every epoch"
        f" divides it into ppo.minibatches {parts}.{size}"
    )


def _batch(value: object, config: Sections) -> str | dict[str, object]:
    if _is_left_out(value):
        return {}
    length, segments = config.actor.unroll_length, config.sampling.batch_segments
    number, environments = _number(value), config.train.least_actors * config.actor.environments
    if number and _is_synchronous(config) and number % environments == 0:
        return {"actor": {"unroll_length": number // environments}}
    # Multiples of the derived size have whole windows of every actor.
    fitting = config.fitting_batch * max(1, round(number / (config.fitting_batch * length))) if number else segments
    size = f" For about {number} steps, set --sampling.batch-segments {fitting}" if number else ""
    return f"a batch has sampling.batch_segments {segments} segments of actor.unroll_length {length} steps.{size}"


def _fragment(value: object, config: Sections) -> dict[str, object]:
    return {} if _is_left_out(value) else {"actor": {"unroll_length": value}}


def _capacity(value: object, config: Sections) -> str:
    number = _number(value)
    sizes = (
        f"--replay.capacity-steps {number} or --replay.capacity-segments {number}"
        if number
        else ("--replay.capacity-bytes, --replay.capacity-steps or --replay.capacity-segments")
    )
    return f"the size of the buffer has a unit: write {sizes}"


def _warm_up(value: object, config: Sections) -> str:
    number, length = _number(value), config.actor.unroll_length
    written = f" For {number} steps, write --sampling.min-replay-segments {-(-number // length)}" if number else ""
    return (
        f"replay begins after sampling.min_replay_segments {config.sampling.min_replay_segments} segments of"
        f" {length} steps were trained.{written}"
    )


def _hidden(value: object, config: Sections) -> str:
    return f"the width of each hidden layer is given: --policy.hidden-sizes {value},{value}"


def _policy(value: object, config: Sections) -> str | dict[str, object]:
    kinds = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy")
    if value in kinds:
        return {}
    if value in [kind.replace("Policy", "LstmPolicy") for kind in kinds]:
        return {"policy": {"memory": "lstm"}}
    return (
        "the networks follow from the environment's spaces; change them with --policy.hidden-sizes, --policy.memory"
        " and the other settings of [policy], or give a torch module of your own as --policy.module"
    )


def _table(value: object, config: Sections) -> str | dict[str, object]:
    """Answers for a table of names, such as the names of a network."""
    if isinstance(value, str):
        try:
            value = read_table(value.strip().removeprefix("dict(").removesuffix(")")) if value not in _OFF else {}
        except ValueError as error:
            return str(error)
    if value is None or isinstance(value, Mapping):
        return dict(value or {})
    return "must be a table of names and values; set --policy.hidden-sizes and the other settings of [policy]"


def _architecture(value: object, config: Sections) -> str | dict[str, object]:
    layers = read_scalar(value)
    if isinstance(layers, (list, tuple)) and len(layers) == 1 and isinstance(layers[0], Mapping):
        (layers,) = layers
    if isinstance(layers, Mapping):
        policy, values = layers.get("pi"), layers.get("vf")
        if policy != values:
            return f"policy and value have layers of the same widths, and not {policy} and {values}; give one list"
        layers = policy
    return {"policy": {"hidden_sizes": layers}}


def _memory(value: object, config: Sections) -> dict[str, object]:
    kind = config.policy.memory or "gru"
    return {"policy": {"memory": kind if read_bool(value) else None}}


def _normalisation(value: object, config: Sections) -> str | dict[str, object]:
    both = read_scalar(value)
    if isinstance(both, bool):
        return {"norm_obs": both, "norm_reward": both}
    return _table(value, config)


def _filter(value: object, config: Sections) -> dict[str, object]:
    return {"policy": {"normalise_observations": value == "MeanStdFilter"}}


def _lstm(value: object, config: Sections) -> dict[str, object]:
    return {"policy": {"memory": "lstm" if read_bool(value) else None}}


def _value_clip(value: object, config: Sections) -> dict[str, object]:
    read = read_scalar(value)
    if read in (True, False, None):
        read = config.ppo.clip_range if read else None
    return {"ppo": {"value_clip_range": read}}


def _schedule(value: object, config: Sections) -> str | dict[str, object]:
    kinds = {None: "constant", "constant": "constant", "linear": "linear", "linear_decay": "linear", "cosine": "cosine"}
    if isinstance(value, (str, type(None))) and value in kinds:
        return {"ppo": {"learning_rate_schedule": kinds[value]}}
    return (
        "set --ppo.learning-rate to the rate at the start, and --ppo.learning-rate-schedule to constant, linear,"
        " cosine or points of progress and share, such as [[0, 1], [1, 0.01]]"
    )


def _gpus(value: object, config: Sections) -> str | dict[str, object]:
    number = read_scalar(value)
    if number in (0, 1):
        return {"learner": {"device": "cuda" if number else "cpu"}}
    return "a learner uses one GPU, --learner.device cuda:N; several ranks of it share the work (docs/ranks.md)"


def _bonus(value: object, config: Sections) -> dict[str, object]:
    return {} if read_bool(value) else {"ppo": {"entropy_coefficient": 0.0}}


def _compiled(value: object, config: Sections) -> dict[str, object]:
    return {"learner": {"execution": "compiled"}} if read_bool(value) else {}


def instead_of_callback(callback: object) -> str:
    """Returns the alternative to a callback that is not a function, such as a Stable-Baselines3 callback or a list."""
    kinds = [type(each).__name__ for each in (callback if isinstance(callback, (list, tuple)) else [callback])]
    settings = "; ".join(f"for {kind}, set {_CALLBACKS[kind]}" for kind in kinds if kind in _CALLBACKS)
    return (
        "the argument callback of penstock.train is a function that receives each record of metrics and returns False"
        f" to end the run; got {', '.join(kinds)}; {settings or 'callbacks=[...] takes classes (docs/callbacks.md)'}"
    )


def _callback(value: object, config: Sections) -> str | dict[str, object]:
    return {} if value in _OFF else instead_of_callback(value)


def _line(text: str, *same: object, off: Iterable[object] = _OFF) -> Answer:
    """Returns an answer with this line, except to values that change nothing: the values in `off`, and `same`."""

    def answer(value: object, config: Sections) -> str | dict[str, object]:
        # An option without a value is true.
        read = tuple(found) if isinstance(found := read_scalar(value), list) else found
        unchanged = any(type(read) is type(each) and read == each for each in (*off, *same))
        return {} if unchanged else text

    return answer


def _always(text: str, *same: object) -> Answer:
    """Returns an answer with this line, except to these values, of which the first says that the part is on."""
    return _line(text, *same, off=())


_TRACKERS = _line(
    "every run has event files: `tensorboard --logdir runs` shows them. --tracker wandb, mlflow or trackio sends the"
    " same numbers to a tracker"
)
_WANDB = _line(
    "wandb itself reads the variables WANDB_ENTITY, WANDB_RUN_GROUP and WANDB_MODE; set the variable instead"
)
_FILMS = _line(
    "--evaluation.film_every 1 films each evaluation, and `penstock evaluate --record-video` the trained policy"
)
_SHOWN = _line(
    "the terminal shows progress all the time, and more with `penstock train --verbose` or verbose=True of"
    " penstock.train; metrics.jsonl has a record per second, and --telemetry.log-level concerns the services' logs",
    *(True, 0, 1, 2),
)
_LOGGING = _line(
    "metrics.jsonl has a record about every second, and the terminal shows the newest one; remove it", *(1, -1)
)
_SHARED = _line("all actors share one policy; set their number with --actors", 1)
_VECTOR = _line(
    "each actor is a process that steps its environments one after another; set --actors and --envs-per-actor"
)
_MONITOR = _line("metrics.jsonl in the run's folder has the mean returns of episodes; remove it")
_WRAPPER = _line("give the arguments with the wrapper: --environment.wrappers 'TimeLimit(max_episode_steps=100)'")
_BUFFER = _line("the replay service is the buffer; set its size and draws in [replay] and [sampling]")
_NOISE = _line("exploration follows the policy's distribution; --policy.state-dependent-std lets it depend on states")
_CALLBACKS = {
    "EvalCallback": "evaluation.interval_steps and evaluation.episodes",
    "CheckpointCallback": "checkpoint.save_interval",
    "StopTrainingOnRewardThreshold": "run.stop_at_return",
    "StopTrainingOnMaxEpisodes": "run.total_episodes",
    "ProgressBarCallback": "progress=True",
}
"""Settings that do the work of Stable-Baselines3's callbacks, by their classes."""
_PENALTY = _line("there is no penalty on the KL divergence; --ppo.target-kl bounds it, which ends the passes", 0.0, 0)
_OPTIMIZER = _line(
    "the optimizer is Adam with epsilon 1e-5; --learner.optimizer names a function that makes another one",
    *("adam", 1e-5, 0.9, 0.999),
)
_REWARDS = _line(
    "rewards are scaled by their returns (policy.normalise_returns); to change them in training alone, give the"
    " environment an argument for it in environment.training_kwargs",
    *(1.0, 1, 1000.0),
)
_NO_PARTS = _line(
    "Penstock makes the networks, the loss and the optimizer from its settings in [ppo] and [policy]; --policy.module,"
    " --learner.loss and --learner.optimizer take your own"
)
_TRUNCATED = _line("set max_episode_steps in environment.kwargs, which gymnasium.make reads", -1)
_RESUME = _always("to continue a run, resume it: `penstock train --resume RUN`", True, "resume", "latest")
_FOLDER = _line("--run-dir is the whole path of the run's folder, and --run-name its name in runs/")
_SECONDS = _line("set the interval: checkpoint.save_interval in steps, checkpoint.save_interval_minutes in minutes", -1)
_GROWTH = _line("the learner requests --sampling.off-policy-degree batches ahead at most, and actors wait for grants")
_LAG = _line(
    "--sampling.off-policy-degree bounds the age of new segments before they are collected, and"
    " --sampling.max-staleness the age of replayed ones, in versions"
)

_SEEDS = _always("a run has one seed; start one with each --seed, and penstock plot RUN RUN draws them as one curve", 1)

ANSWERS: dict[str, Answer] = {
    # In this order: each answer follows from the settings before it.
    **dict.fromkeys(("num_envs", "n_envs"), _environments),
    **dict.fromkeys(("num_steps", "n_steps", "steps_per_worker", "rollout_length"), _rollout),
    "rollout_fragment_length": _fragment,
    **dict.fromkeys(("train_batch_size_per_learner", "train_batch_size", "frames_per_batch"), _batch),
    **dict.fromkeys(("batch_size", "mini_batch_size", "minibatch_size", "sub_batch_size"), _minibatch),
    **dict.fromkeys(("num_iterations", "num_updates", "train_iterations"), _iterations),
    **dict.fromkeys(("buffer_size", "buffer_capacity"), _capacity),
    **dict.fromkeys(("min_buffer_size", "min_batch_size", "learning_starts"), _warm_up),
    # Networks.
    "policy": _policy,
    **dict.fromkeys(("policy_kwargs", "model", "model_config"), _table),
    "net_arch": _architecture,
    "hidden_dim": _hidden,
    "use_rnn": _memory,
    "use_lstm": _lstm,
    "rnn_num_layers": _always("the memory has one layer; set its width with --policy.memory-size", 1),
    "recurrence": _always("gradients pass through whole segments, of --actor.unroll-length steps", -1, 1),
    "max_seq_len": _always("gradients pass through whole segments; set --actor.unroll-length", 20),
    "ortho_init": _always("weights are orthogonal at the start; remove it", True),
    "normalize_images": _always("pixels are divided by 255; remove it", True),
    "policy_initialization": _always("weights are orthogonal at the start; remove it", "orthogonal"),
    "share_features_extractor": _always("set --policy.trunk to shared or separate", True),
    **dict.fromkeys(("features_extractor_class", "features_extractor_kwargs", "conv_filters"), _NO_PARTS),
    **dict.fromkeys(("actor_network", "critic_network", "rl_module_spec", "rnn_name", "policy_name"), _NO_PARTS),
    **dict.fromkeys(("loss_module", "learner_class", "learner_connector", "learner_config_dict"), _NO_PARTS),
    **dict.fromkeys(("logger", "collector"), _NO_PARTS),
    "add_default_connectors_to_learner_pipeline": _always("the learner has no connectors; remove it", True),
    # Exploration, the loss and its optimizer.
    **dict.fromkeys(("use_sde", "use_expln", "full_std"), _NOISE),
    "sde_sample_freq": _line("there is no generalised state-dependent exploration; remove it", -1),
    **dict.fromkeys(("clip_vloss", "clip_value"), _value_clip),
    "vf_clip_param": _line(
        "it bounds the squared error of the value, which Penstock does not; --policy.normalise-returns bounds the scale"
        " of the error, and --ppo.value-clip-range the change of the value"
    ),
    "lr_schedule": _schedule,
    "entropy_coeff_schedule": _line(
        "set --ppo.entropy-coefficient, and --ppo.entropy-schedule to linear, cosine or points"
    ),
    "entropy_bonus": _bonus,
    "exploration_loss": _line("the bonus is the entropy; set --ppo.entropy-coefficient", "entropy"),
    **dict.fromkeys(("kl_loss_coeff", "use_kl_loss", "kl_coeff", "kl_target"), _PENALTY),
    **dict.fromkeys(("use_critic", "use_gae"), _always("values and GAE are always used; remove it", True)),
    "add_gae": _always("advantages are always computed by GAE or V-trace; remove it", True),
    "loss_critic_type": _line("the loss of the value is the squared error; --ppo.value-clip-range clips it", "l2"),
    "clip_grad_norm": _always("gradients are always clipped; set --ppo.max-gradient-norm", True),
    "grad_clip_by": _always("gradients are clipped by their norm; set --ppo.max-gradient-norm", "global_norm"),
    **dict.fromkeys(
        ("shuffle_batch_per_epoch", "shuffle_minibatches"), _always("each pass shuffles its batch; remove it", True)
    ),
    "value_bootstrap": _always("truncated episodes are always bootstrapped; remove it", True),
    **dict.fromkeys(("optimizer_class", "optimizer_kwargs"), _OPTIMIZER),
    **dict.fromkeys(("adam_eps", "adam_beta1", "adam_beta2", "lr_scheduler"), _OPTIMIZER),
    "optim_steps_per_batch": _line("a batch has ppo.epochs times ppo.minibatches steps; set these"),
    "max_minibatch_size": _line("gradients are not accumulated; set --ppo.minibatches"),
    "compile": _compiled,
    **dict.fromkeys(("seeds", "num_seeds", "n_seeds"), _SEEDS),
    "torch_deterministic": _line("runs with the preset textbook repeat bit for bit on a CPU; remove it", True),
    # Environments and processes.
    **dict.fromkeys(("vec_env_cls", "vec_env_kwargs", "backend", "zero_copy", "serial_mode"), _VECTOR),
    **dict.fromkeys(("batched_sampling", "worker_num_splits", "policy_workers_per_policy"), _VECTOR),
    "gym_env_vectorize_mode": _VECTOR,
    "start_index": _line("the seeds of environments follow from --seed; remove it", 0),
    "wrapper_kwargs": _WRAPPER,
    **dict.fromkeys(("monitor_dir", "monitor_kwargs"), _MONITOR),
    "env_frameskip": _line("give the environment its own argument: --environment.kwargs frameskip=4", 1),
    "frame_skip": _line("give the environment its own argument: --environment.kwargs frameskip=4", 1),
    "max_frames_per_traj": _TRUNCATED,
    **dict.fromkeys(("reward_scale", "reward_clip", "clip_rewards"), _REWARDS),
    **dict.fromkeys(("obs_subtract_mean", "obs_scale"), _line("set --policy.normalise-observations", 0.0, 1.0)),
    "observation_filter": _filter,
    **dict.fromkeys(("train_shared", "distributed", "num_policies"), _SHARED),
    **dict.fromkeys(("policies", "policy_mapping_fn", "policies_to_train"), _SHARED),
    **dict.fromkeys(("num_gpus", "num_gpus_per_learner"), _gpus),
    "num_learners": _line("a run has one learner, whose ranks may share its work (docs/ranks.md)", 0, 1),
    "framework": _line("the learner uses torch; remove it", "torch"),
    "max_policy_lag": _LAG,
    **dict.fromkeys(("num_batches_to_accumulate", "max_requests_in_flight_per_sampler_worker"), _GROWTH),
    "max_requests_in_flight_per_aggregator_actor": _GROWTH,
    "num_aggregator_actors_per_learner": _line("the replay service assembles batches; set --train.replay-shards", 0),
    "batch_mode": _always("segments go on after the end of an episode; set --actor.unroll-length", "truncate_episodes"),
    "cpu_offload": _line("batches are in host memory until they are trained; remove it"),
    **dict.fromkeys(("rollout_buffer_class", "rollout_buffer_kwargs", "replay_buffer"), _BUFFER),
    # Runs, their files and their display.
    **dict.fromkeys(("verbose", "progress_bar"), _SHOWN),
    **dict.fromkeys(("log_interval", "experiment_summaries_interval"), _LOGGING),
    **dict.fromkeys(("stats_window_size", "stats_avg"), _line("evaluations are means of --evaluation.episodes", 100)),
    **dict.fromkeys(("neptune", "tensorboard_log", "tensorboard"), _TRACKERS),
    **dict.fromkeys(("wandb_entity", "wandb_user", "wandb_group", "wandb_mode"), _WANDB),
    "tb_log_name": _line("set the run's folder with --run-name", "PPO"),
    **dict.fromkeys(("callback", "callbacks_class"), _callback),
    **dict.fromkeys(("render", "capture_video", "save_video"), _FILMS),
    **dict.fromkeys(("reset_num_timesteps", "restart_behavior", "load_checkpoint_kind"), _RESUME),
    **dict.fromkeys(("train_dir", "data_dir", "save_trainer_file"), _FOLDER),
    **dict.fromkeys(
        ("checkpoint_interval", "save_trainer_interval", "save_best_every_sec", "save_milestones_sec"), _SECONDS
    ),
    "with_pbt": _line("there is no search of settings and no population; start a run for each setting"),
    "save_model": _always("the run's folder has the best and the newest checkpoints; remove it", True),
    **dict.fromkeys(
        ("upload_model", "push_to_hub", "hf_entity"), _line("set --checkpoint.copy-to to copy the policy elsewhere")
    ),
    "init_setup_model": _always("the policy is made when the run begins; remove it", True),
    "algo": _line("Penstock has one algorithm, asynchronous PPO with replay; remove the option", "PPO", "APPO"),
    "normalize": _normalisation,
    "quick_test": _line("set --total-steps 10000 for a short run"),
    "warmup_seconds": _line("services wait until all others are ready, however long that takes; remove the option"),
    "episodes": _line(
        "set evaluation.episodes for the episodes of an evaluation, or run.total_episodes to end training"
    ),
}
"""By name, with underscores."""
