"""Settings that every test shares: one torch thread, and the same hypothesis examples in every run."""

import hypothesis
import torch

torch.set_num_threads(1)

hypothesis.settings.register_profile("penstock", deadline=None, derandomize=True, database=None, max_examples=50)
hypothesis.settings.load_profile("penstock")
