"""The settings of the tables of `make bench-loop`, and how each system deviates from the common work, as text.

They are written into the result file, from which `benchmarks.tables` writes the documentation.
"""

from benchmarks.peers import equal_work

SETTINGS = {
    "like_for_like": (
        "CartPole-v1 as Gymnasium's CartPoleVectorEnv and Pendulum-v1 as benchmarks/peers/vector_pendulum.py, for all"
        f" systems; {equal_work.ENVIRONMENTS} environments; batches of {equal_work.BATCH:,} new steps"
        f" ({equal_work.SEGMENT_STEPS} of each environment); {equal_work.EPOCHS} passes; separate networks of policy"
        " and value with two tanh layers of 64; float32; Adam; gradient norm clipped; no normalisation of"
        " observations or returns; no KL bound; no evaluations; one thread per process; the same two cores; the first"
        " quarter of each run left out; CPU time of the whole process tree"
    ),
    "as_people_run": (
        "the system's own settings for the task; seconds from the command, with imports, processes and evaluations;"
        " 20 deterministic episodes at equal intervals of steps; reached at the first of two consecutive evaluations"
        " that meet the threshold; one thread per process; the same two cores; a peer is observed until it ends or for"
        " ten times the seconds that Penstock took with the same seed, at least 15"
    ),
    "data_path": (
        "the presets cartpole_no_replay and pendulum without evaluations, beside the same collector and learner with"
        " nothing but shared memory between their processes"
    ),
}
"""Settings by table."""

DEVIATIONS = {
    "penstock": (
        "leaves out the row in which an environment resets itself; stores every segment in the replay service, with"
        " checksums and priorities; trains batches that are one version old; corrects advantages by V-trace"
    ),
    "sb3": (
        "trains on the row in which an environment resets itself; has no terminal observation for truncated episodes"
    ),
    "cleanrl": (
        "its published ppo.py and ppo_continuous_action.py, which import our environments and no TensorBoard; trains on"
        " the row in which an environment resets itself; value loss without clip"
    ),
    "pufferlib": (
        "draws whole segments from the batch for each minibatch; computes all advantages for each minibatch; clips"
        " rewards to [-1, 1]; trains on the row in which an environment resets itself"
    ),
    "rllib": "PPO, synchronous: one process collects, then the main process trains; keeps episodes as Python objects",
    "sample_factory": (
        "asynchronous, with batched sampling in one worker; rewards scaled by 0.01; trains on the row in which an"
        " environment resets itself; Gymnasium 1.4 in place of the version that it asks for"
    ),
}
"""How each system differs from the common work in the table like_for_like."""
