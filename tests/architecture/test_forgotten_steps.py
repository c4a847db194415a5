"""Steps of the recipes in docs/maintaining.md that no other test reports when they are forgotten."""

import ast
import dataclasses
import functools
import typing
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from penstock.acting.collector import Collector
from penstock.acting.environments.frames import with_frames
from penstock.acting.policies.inference import PolicyRunner
from penstock.acting.values.spaces import segment_schema
from penstock.config import Config, setting_names
from penstock.config.foreign_code import CODE, FileNames, code_settings
from penstock.config.sections import described
from penstock.learning.step.batches import to_tensors
from penstock.learning.step.gradient_steps import Steps
from penstock.losses import Minibatch
from penstock.machine.environment_names import name_of
from penstock.v1 import block_pb2, evaluation_pb2, location_pb2, replay_pb2, run_pb2, snapshot_pb2
from tests.rules import for_each
from tests.support.environments.made import make_environments
from tests.support.environments.tiny import assignment
from tests.support.training.policies import fresh_weights
from tests.support.training.training import CPU, collect_batch

PACKAGE = Path(penstock.__file__).parent
TREES = {
    path.relative_to(PACKAGE): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py") if path.parent.name != "v1"
}
NODES = [node for tree in TREES.values() for node in ast.walk(tree)]
SET_OTHERWISE = {"contract", "block", "payload"}
"""Fields that `rpc.service` sets in every first message, and those that `wire.block` writes without protobuf."""

TEXTS = {node.value for node in NODES if isinstance(node, ast.Constant) and isinstance(node.value, str)}
CONTRACT = {
    message.name: message
    for module in (block_pb2, location_pb2, replay_pb2, run_pb2, evaluation_pb2, snapshot_pb2)
    for message in module.DESCRIPTOR.message_types_by_name.values()
}

# Settings


def names_read(trees: list[ast.AST]) -> set[str]:
    return {
        node.attr
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


READ = names_read(list(TREES.values()))
READ_BY_NAME = {"policy"}
"""Sections that are passed on whole: a setting unknown to the receiver is an error there."""


@for_each("name", setting_names())
def test_every_setting_is_read(name: str) -> None:
    section, key = name.split(".")
    assert section in READ_BY_NAME or key in READ | TEXTS, f"no code reads {name}"


@for_each("name", setting_names())
def test_every_setting_is_documented(name: str) -> None:
    assert described(name), f"{name} needs a docstring with its unit and meaning"


def validates_a_name_of_code(annotation: object) -> bool:
    """Returns whether a setting's type, or a part of it, accepts a class or a function by a validator alone."""
    functions = [getattr(each, "func", None) for each in getattr(annotation, "__metadata__", ())]
    named = any(isinstance(each, functools.partial) and each.func is name_of for each in functions)
    return named or any(map(validates_a_name_of_code, typing.get_args(annotation)))


def test_every_setting_that_names_code_is_refused_from_a_file() -> None:
    names = code_settings().keys()
    assert {"policy.module", "learner.loss", "learner.optimizer", "ppo.advantage", "sampling.priority"} <= {*names}
    for name in setting_names():
        section, key = name.split(".")
        model: Any = Config.model_fields[section].annotation
        kind = typing.get_type_hints(model, include_extras=True)[key]
        assert not validates_a_name_of_code(kind), f"{name} names code: mark its type by CodeName"
    for name in names:
        section, key = name.split(".")
        # A curriculum divides collection among variants.
        environment: dict[str, object] = (
            {"environment": {"variants": [{}, {}]}} if name == "sampling.collection" else {}
        )
        config = Config(**{**environment, section: {key: "some_module:Thing"}})
        assert name in CODE
        assert FileNames.all_in(Path("config.toml"), config).names == {name}, f"imported_by lacks {name}"
        assert config.names_code


# The loss


def test_losses_of_users_get_every_input_of_the_loss() -> None:
    inputs = {each.name for each in dataclasses.fields(Steps)} - {"usable"}
    fields = {each.name for each in dataclasses.fields(Minibatch)}
    assert inputs <= fields, "add the field to Minibatch in losses.py"
    documented = {line.strip().partition(":")[0] for line in str(Minibatch.__doc__).splitlines()}
    assert fields <= documented, "document the field of Minibatch with its shape"


# The contract


def built_messages() -> dict[str, set[str | None]]:
    """Returns the fields that the code sets when it builds a message, by message; None: fields by name (`**`)."""
    fields: dict[str, set[str | None]] = {}
    for node in NODES:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CONTRACT:
            fields.setdefault(node.func.attr, set()).update(keyword.arg for keyword in node.keywords)
    return fields


BUILT = built_messages()
ASSIGNED = {node.attr for node in NODES if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
COPIED = {
    node.value.attr
    for node in NODES
    if isinstance(node, ast.Attribute)
    and node.attr in ("CopyFrom", "MergeFrom", "append", "extend")
    and isinstance(node.value, ast.Attribute)
}


@for_each(
    ("message", "field"),
    sorted(
        (message.name, field)
        for message in CONTRACT.values()
        # Fields that are converted by name are covered by `test_declared_statistics`.
        if message.name in BUILT and None not in BUILT[message.name]
        for field in message.fields_by_name
    ),
)
def test_every_field_of_the_contract_is_set_and_read(message: str, field: str) -> None:
    assert field in BUILT[message] | ASSIGNED | COPIED | SET_OTHERWISE, f"no code sets {message}.{field}"
    assert field in READ | TEXTS, f"no code reads {message}.{field}"


# Columns


def test_the_collector_fills_every_column() -> None:
    environments = with_frames(make_environments("Counting-v0", 4, kwargs={}), 2)
    schema = segment_schema(environments.spec, 64)
    collector = Collector(environments, assignment(*range(4)), schema=schema, discount=0.9)
    columns = collector.collect(PolicyRunner(fresh_weights(environments.spec))).columns
    for column in columns.schema.columns:
        assert np.any(columns.column(column.name)), f"the collector writes nothing into {column.name}"


def test_the_learner_takes_every_column() -> None:
    batch = collect_batch()
    read: set[str] = set()

    class Watched:
        schema = batch.columns.schema

        def column(self, name: str) -> Any:
            read.add(name)
            return batch.columns.column(name)

    to_tensors(dataclasses.replace(batch, columns=Watched()), CPU)  # type: ignore[arg-type]
    assert read == {column.name for column in batch.columns.schema.columns}


# Records


def test_every_sink_of_records_is_opened() -> None:
    sinks = [
        node.name
        for path, tree in TREES.items()
        if path.parts[0] == "learning"
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and not node.name.endswith("Sink")
        and {"resume", "write"} <= {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    ]
    assert "Journal" in sinks
    used = {node.id for node in ast.walk(TREES[Path("learning/run/assembly.py")]) if isinstance(node, ast.Name)}
    assert set(sinks) <= used, "open the sink in learning/run/assembly.py"
