"""The torture of the replay service: killed again and again under load, and every promise checked.

`run.py` tells the story; `make torture` and tests/integration/test_torture.py play it at two lengths.
"""
