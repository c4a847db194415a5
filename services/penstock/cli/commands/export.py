"""`penstock export`: writes a trained policy as a file for programs without Penstock."""

from collections.abc import Sequence
from pathlib import Path

from penstock.cli.named import add_code_options, chosen_run
from penstock.cli.one_line_parser import OneLineParser
from penstock.errors import ConfigurationError
from penstock.machine import extras
from penstock.machine.files import write_atomically
from penstock.machine.module_imports import loading
from penstock.machine.system_errors import in_words
from penstock.runs.folder import find_checkpoint, has_checkpoint

_FILE = "policy.onnx"


def command(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    parser = OneLineParser(prog="penstock export", description="Write a trained policy for programs without Penstock.")
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="run, whose best checkpoint is written, by its folder or its name in runs/, or checkpoint file"
        " (default: the newest run)",
    )
    parser.add_argument("--onnx", action="store_true", required=True, help="write an ONNX file")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help=f"file to write (default: {_FILE} in the run's folder)"
    )
    add_code_options(parser)
    named = parser.parse_args(list(arguments))
    for module in ("onnx", "onnxruntime", "onnxscript"):
        extras.require(module, "penstock export --onnx")
    path = find_checkpoint(chosen_run(named.run, has_checkpoint, "a checkpoint"))
    with loading():
        from penstock.acting.policies.exported import ROWS, export
        from penstock.acting.policies.saved_policies import read_policy
    policy = read_policy(path, module=named.module, trust_code=named.trust_code)
    with policy.errors_named():
        exported = export(policy.weights, module=policy.network.module)
    folder = path.parent.parent if path.parent.name == "checkpoints" else path.parent
    output: Path = folder / _FILE if named.output is None else named.output
    try:
        write_atomically(output, exported.data)
    except OSError as error:
        raise ConfigurationError(
            f"can't write {output}: {in_words(error, output, 'name its file with --output')}"
        ) from None
    print(f"{policy.spec.id}, version {policy.weights.version} of {path}")
    print(f"inputs: {', '.join(exported.inputs)}")
    print(f"outputs: {', '.join(exported.outputs)}")
    print(f"checked with onnxruntime on {ROWS} random observations, largest difference {exported.difference:.1e}")
    print(output)
    return 0
