"""CleanRL's `ppo.py` or `ppo_continuous_action.py` itself on the work of `benchmarks.peers.equal_work`.

The file runs as published, but for two of the things that it imports: its `SyncVectorEnv` makes the environments of all
systems, and its `SummaryWriter` writes no TensorBoard files, and notes the environment steps in the journal. The
wrappers of ppo_continuous_action.py, which would normalise, belong to its single environments and are left out with
them. The value loss is not clipped, as in the other systems.

The first argument is the folder of CleanRL's programs.
"""

import runpy
import sys
from pathlib import Path
from typing import Any

import gymnasium
import torch

from benchmarks.peers import cleanrl_writer, equal_work
from benchmarks.peers.equal_work import Work

PROGRAMS = {"CartPole-v1": "ppo.py", "Pendulum-v1": "ppo_continuous_action.py"}


def main() -> None:
    """Trains until it is stopped."""
    folder = Path(sys.argv.pop(1))
    work = Work.from_arguments()
    torch.set_num_threads(1)
    journal = work.open_journal()
    cleanrl_writer.write_to(lambda env_steps, _: journal.trained(env_steps))

    def shared(functions: Any) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        return work.make()

    gymnasium.vector.SyncVectorEnv = shared  # type: ignore[assignment,misc]
    program = str(folder / PROGRAMS[work.env_id])
    sys.argv = [
        program,
        f"--env-id={work.env_id}",
        f"--seed={work.seed}",
        f"--num-envs={equal_work.ENVIRONMENTS}",
        f"--num-steps={equal_work.SEGMENT_STEPS}",
        f"--total-timesteps={equal_work.ENDLESS_STEPS}",
        f"--num-minibatches={work.minibatches}",
        f"--update-epochs={equal_work.EPOCHS}",
        f"--learning-rate={equal_work.LEARNING_RATE}",
        f"--gamma={equal_work.DISCOUNT}",
        f"--gae-lambda={equal_work.TRACE_DECAY}",
        f"--clip-coef={equal_work.CLIP_RANGE}",
        f"--ent-coef={equal_work.ENTROPY_COEFFICIENT}",
        f"--vf-coef={equal_work.VALUE_COEFFICIENT}",
        f"--max-grad-norm={equal_work.MAX_GRADIENT_NORM}",
        "--no-clip-vloss",
        "--no-cuda",
    ]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
