"""The learner: conversion of batches to tensors, the training step, checkpoints, and a run's bookkeeping."""
