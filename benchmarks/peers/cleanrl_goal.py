"""CleanRL's `ppo.py` or `ppo_continuous_action.py` as published, with its defaults, judged until it is stopped.

It writes no TensorBoard files; in place of its writer, the judge looks at its `agent` after each batch. CleanRL is
written for Gymnasium 0.29; with version 1, a wrapper of ppo_continuous_action.py needs one more argument. The first
argument is the folder of CleanRL's programs.
"""

import runpy
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peers import cleanrl_writer
from benchmarks.peers.judge import Goal, Judge


def _act(names: dict[str, Any], observation: NDArray[np.float32]) -> NDArray[np.generic]:
    """Returns the most likely actions of the program that has these names."""
    agent, envs = names["agent"], names["envs"]
    with torch.no_grad():
        if hasattr(agent, "actor"):
            chosen: NDArray[np.generic] = agent.actor(torch.from_numpy(observation)).argmax(dim=1).numpy()
            return chosen
        moments = envs.envs[0].get_wrapper_attr("obs_rms")
        # As its wrappers do to the observations and actions of training.
        normal = np.clip((observation - moments.mean) / np.sqrt(moments.var + 1e-8), -10, 10)
        mean = agent.actor_mean(torch.from_numpy(normal.astype(np.float32))).numpy()
        space = envs.single_action_space
        clipped: NDArray[np.generic] = np.clip(mean, space.low, space.high)
        return clipped


def main() -> None:
    """Trains."""
    folder = Path(sys.argv.pop(1))
    goal = Goal.from_arguments()
    torch.set_num_threads(1)
    judge = Judge(goal)
    cleanrl_writer.write_to(lambda env_steps, names: judge.look(env_steps, lambda seen: _act(names, seen)))
    wrapper = gymnasium.wrappers.TransformObservation

    def transformed(env: gymnasium.Env[Any, Any], function: Any) -> gymnasium.Env[Any, Any]:
        return wrapper(env, function, env.observation_space)

    gymnasium.wrappers.TransformObservation = transformed  # type: ignore[assignment,misc]
    program = folder / ("ppo_continuous_action.py" if goal.env_id.startswith("Pendulum") else "ppo.py")
    sys.argv = [str(program), f"--env-id={goal.env_id}", f"--seed={goal.seed}"]
    runpy.run_path(str(program), run_name="__main__")


if __name__ == "__main__":
    main()
