"""The Python API: functions and classes of `penstock` that connect its parts for users' scripts."""
