"""The learner: conversion of batches to tensors, the training step, checkpoints, and a run's bookkeeping."""

from penstock.machine import compiled_code

compiled_code.make_writable()
