"""Returns of random policies: the lower end of the scales on which benchmarks compare returns."""

RANDOM_RETURNS = {
    "CartPole-v1": 22.2,
    "MountainCar-v0": -200.0,
    "MountainCarContinuous-v0": -33.3,
    "Acrobot-v1": -499.1,
    "Pendulum-v1": -1_231.0,
    "LunarLander-v3": -182.0,
    "LunarLanderContinuous-v3": -209.8,
    "MiniGrid-DoorKey-5x5-v0": 0.022,
    "HalfCheetah-v5": -280.6,
    "Hopper-v5": 17.6,
    "Walker2d-v5": 1.8,
    "Taxi-v4": -187.1,
    "HiddenVelocityCartPole-v0": 22.1,
}
"""Mean return of uniformly random actions, of the legal ones if there are masks, over at least 200 episodes."""
