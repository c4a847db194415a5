"""Tables of the results on a GPU, for `tables`."""

from collections.abc import Mapping
from typing import Any

Document = Mapping[str, Any]
_NETWORKS = {
    "small": "64 x 64, 512 rows",
    "medium": "256 x 256, 512 rows",
    "convolutional": "4 x 84 x 84 frames, 512 rows",
}


def learner(document: Document) -> str:
    """Returns samples/s by network, execution and precision."""
    cases = document["cases"]
    precisions = list(dict.fromkeys(case["precision"] for case in cases))
    rows = []
    for policy, execution in dict.fromkeys((case["policy"], case["execution"]) for case in cases):
        by_precision = {
            case["precision"]: case["samples_per_s"]
            for case in cases
            if (case["policy"], case["execution"]) == (policy, execution)
        }
        paces = (f"{by_precision[each]:,.0f}" for each in precisions)
        rows.append(f"| {_NETWORKS[policy]} | {execution} | {' | '.join(paces)} |")
    head = ["network, minibatch", "execution", *precisions]
    return "\n".join([_line(head), _line(["---"] * len(head)), *rows, "", _source(document, "learner")])


def errors(document: Document) -> str:
    """Returns the errors of log pi by network and precision."""
    rows = [
        _line([_NETWORKS[case["policy"]].partition(",")[0], case["precision"], *map(_short, _errors(case))])
        for case in document["cases"]
    ]
    head = ["network", "`learner.precision`", "mean error of log pi", "largest"]
    sentence = (
        f"Over {document['rows']:,} random observations, after {document['batches']} batches of training."
        f" {_source(document, 'errors')}"
    )
    return "\n".join([_line(head), _line(["---"] * len(head)), *rows, "", sentence])


def _errors(case: Document) -> tuple[float, float]:
    return case["mean"], case["largest"]


def _short(value: float) -> str:
    return f"{value:.1g}" if value < 1e-4 else f"{value:.2g}"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _source(document: Document, name: str) -> str:
    host = document["provenance"]["machine"].partition(",")[0]
    return (
        f"{document['machine']}, host {host}, torch {document['torch']}, {document['provenance']['date'][:10]}"
        f" ([result file](../results/gpu/{name}.json))."
    )
