"""RLlib's PPO on the work of `benchmarks.peers.equal_work`: a runner that collects, and a learner in the main process.

The runner makes Gymnasium's vector environment itself.
"""

# Before RLlib, which imports Ray.
from benchmarks.peers import ray_start  # isort: skip

import gymnasium
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from benchmarks.peers import equal_work, vector_pendulum
from benchmarks.peers.equal_work import Work

ENV_IDS = {"CartPole-v1": "CartPole-v1", "Pendulum-v1": f"{vector_pendulum.__name__}:{vector_pendulum.ENV_ID}"}
"""Names under which Gymnasium finds the vector environments."""


def main() -> None:
    """Trains until it is stopped."""
    work = Work.from_arguments()
    ray_start.start(work.journal.parent)
    config = (
        PPOConfig()
        .environment(ENV_IDS[work.env_id])
        .env_runners(
            num_env_runners=1,
            num_envs_per_env_runner=equal_work.ENVIRONMENTS,
            gym_env_vectorize_mode=gymnasium.VectorizeMode.VECTOR_ENTRY_POINT,
            rollout_fragment_length=equal_work.SEGMENT_STEPS,
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(work.hidden), fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .training(
            lr=equal_work.LEARNING_RATE,
            gamma=equal_work.DISCOUNT,
            lambda_=equal_work.TRACE_DECAY,
            clip_param=equal_work.CLIP_RANGE,
            vf_clip_param=1e6,
            vf_loss_coeff=equal_work.VALUE_COEFFICIENT,
            entropy_coeff=equal_work.ENTROPY_COEFFICIENT,
            use_kl_loss=False,
            grad_clip=equal_work.MAX_GRADIENT_NORM,
            grad_clip_by="global_norm",
            train_batch_size_per_learner=equal_work.BATCH,
            minibatch_size=work.minibatch,
            num_epochs=equal_work.EPOCHS,
        )
        .reporting(min_time_s_per_iteration=0)
        .debugging(seed=work.seed, log_level="ERROR")
    )
    algorithm, journal = config.build_algo(), work.open_journal()
    while True:
        results = algorithm.train()
        journal.trained(int(results["env_runners"].get("num_env_steps_sampled_lifetime", 0)))


if __name__ == "__main__":
    main()
