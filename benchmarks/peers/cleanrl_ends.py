"""CleanRL's `ppo.py` itself on the chain of examples/episode_ends.py, with any version of Gymnasium.

The first argument is the path of the file. Its options change the size of the run and what the values of the treatments
assume: the discount, the trace decay, and value targets without a clip.
"""

import runpy
import sys
from contextlib import redirect_stdout

import torch

from benchmarks.peers.ends_run import ENV_ID, ENVIRONMENTS, Task, observations, print_values
from examples.episode_ends import DISCOUNT


def main() -> None:
    """Trains, and prints the values."""
    program = sys.argv.pop(1)
    task = Task.from_arguments()
    torch.set_num_threads(1)
    sys.argv = [
        program,
        f"--env-id={ENV_ID}",
        f"--num-envs={ENVIRONMENTS}",
        f"--num-steps={task.segment_steps}",
        f"--total-timesteps={task.total_steps}",
        f"--learning-rate={task.learning_rate}",
        f"--gamma={DISCOUNT}",
        "--gae-lambda=0",
        "--no-clip-vloss",
        "--update-epochs=10",
        f"--seed={task.seed}",
    ]
    with redirect_stdout(sys.stderr):
        agent = runpy.run_path(program, run_name="__main__")["agent"]
    with torch.no_grad():
        values = agent.get_value(torch.from_numpy(observations()))
    print_values(values.numpy(), "gymnasium")


if __name__ == "__main__":
    main()
