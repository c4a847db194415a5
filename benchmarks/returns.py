"""Returns by which benchmarks scale those that they measure."""

RANDOM_RETURNS = {
    "CartPole-v1": 22.2,
    "MountainCar-v0": -200.0,
    "MountainCarContinuous-v0": -33.3,
    "Acrobot-v1": -499.1,
    "Pendulum-v1": -1_231.0,
    "LunarLander-v3": -182.0,
    "LunarLanderContinuous-v3": -209.8,
    "FrozenLake8x8-v1": 0.0,
    "MiniGrid-DoorKey-5x5-v0": 0.022,
    "HalfCheetah-v5": -280.6,
    "Hopper-v5": 17.6,
    "Walker2d-v5": 1.8,
    "Taxi-v4": -187.1,
    "HiddenVelocityCartPole-v0": 22.1,
}
"""Mean return of uniformly random actions, of the legal ones if there are masks, over at least 200 episodes."""

REPORTED_RETURNS = {
    "CartPole-v1": 500.0,
    "MountainCar-v0": -110.423,
    "MountainCarContinuous-v0": 88.343,
    "Acrobot-v1": -73.506,
    "Pendulum-v1": -172.225,
    "LunarLander-v3": 242.119,
    "LunarLanderContinuous-v3": 270.863,
    "MiniGrid-DoorKey-5x5-v0": 0.964,
    "HalfCheetah-v5": 5_819.099,
    "Hopper-v5": 2_410.435,
    "Walker2d-v5": 3_478.798,
}
"""Mean return of PPO in rl-zoo's table (benchmark.md at `benchmarks.peers.zoo_settings.COMMIT`), over some hundred
episodes of one run. LunarLander there is v2, and the tasks of MuJoCo are v3."""
