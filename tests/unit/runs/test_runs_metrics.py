"""The metrics of a run as arrays."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.errors import ConfigurationError
from penstock.learning.durable.journal import Journal
from penstock.learning.durable.records import Record
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.runs.folder import RunFolder
from penstock.runs.metrics import RecordReader, load_metrics
from penstock.types.status import VariantStatus
from tests.unit.runs.test_summary import SUMMARY


def write(folder: Path, *records: Record) -> None:
    notices: list[str] = []
    journal = Journal(RunFolder(folder).metrics, writes=RetriedWrites(notices.append), notice=notices.append)
    for record in records:
        journal.write(record)
    assert notices == []


def test_each_kind_of_record_has_columns_in_the_order_of_the_records(tmp_path: Path) -> None:
    write(
        tmp_path,
        Record("training", 10, {"return_mean": None, "entropy": 0.5}),
        Record("evaluation", 10, {"return_mean": 3.0}),
        Record("training", 20, {"return_mean": 2.0, "entropy": 0.25, "new": 1}, (VariantStatus("a"),)),
        Record("final_evaluation", 20, {"return_mean": 4.0}),
    )
    metrics = penstock.load_metrics(tmp_path)
    np.testing.assert_array_equal(metrics.training["env_steps"], [10, 20])
    np.testing.assert_array_equal(metrics.training["return_mean"], [np.nan, 2.0])
    np.testing.assert_array_equal(metrics.training["new"], [np.nan, 1.0])
    assert metrics.training.keys() == {"env_steps", "return_mean", "entropy", "new"}
    assert {name: values.tolist() for name, values in metrics.evaluation.items()} == {
        "env_steps": [10.0],
        "return_mean": [3.0],
    }
    assert metrics.final_evaluation["return_mean"] == [4.0]
    found = replace(SUMMARY, run_dir=str(tmp_path)).metrics()
    np.testing.assert_array_equal(found.training["entropy"], metrics.training["entropy"])


def test_incomplete_lines_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, Record("training", 10, {"entropy": 0.5}))
    with RunFolder(tmp_path).metrics.open("a") as file:
        file.write('[1]\n{"kind": "training"}\n{"kind": "training", "env_steps": 2')
    assert penstock.load_metrics(str(tmp_path)).training["entropy"].tolist() == [0.5]


def test_a_reader_returns_complete_new_records_once(tmp_path: Path) -> None:
    reader = RecordReader(tmp_path)
    assert reader.read() == []
    write(tmp_path, Record("training", 10, {"entropy": 0.5}))
    with RunFolder(tmp_path).metrics.open("a") as file:
        file.write('{"kind": "training", "env_')
    assert reader.read() == [{"kind": "training", "env_steps": 10, "entropy": 0.5}]
    assert reader.read() == []
    with RunFolder(tmp_path).metrics.open("a") as file:
        file.write('steps": 20}\n')
    assert reader.read() == [{"kind": "training", "env_steps": 20}]


def test_a_reader_of_a_resumed_run_returns_none_of_the_earlier_records(tmp_path: Path) -> None:
    write(tmp_path, *(Record("training", steps, {"entropy": 0.5}) for steps in (10, 20, 30)))
    reader = RecordReader(tmp_path)
    journal = Journal(RunFolder(tmp_path).metrics, writes=RetriedWrites(print), notice=print)
    # The newest checkpoint is older than the last record, which is removed.
    journal.resume(20)
    journal.write(Record("training", 25, {"entropy": 0.4}))
    assert [record["env_steps"] for record in reader.read()] == [25]
    assert load_metrics(tmp_path).training["env_steps"].tolist() == [10, 20, 25]


def test_a_folder_without_metrics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"can't read the metrics .*metrics\.jsonl: No such file"):
        penstock.load_metrics(tmp_path)
