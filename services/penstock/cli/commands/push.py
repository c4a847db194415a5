"""`penstock push`: publishes a trained policy, with a model card, in a folder or on the Hugging Face Hub.

The folder has the layout of a run, so that `penstock.load_policy` and `penstock evaluate` read it. README.md is the
model card, whose metadata follow the hub's specification, and replay.mp4 the film that the hub shows.
"""

import dataclasses
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from penstock.acting.policies.saved_policies import read_policy
from penstock.cli.named import chosen_run
from penstock.cli.one_line_parser import OneLineParser
from penstock.errors import ConfigurationError
from penstock.machine import extras, foreign_errors
from penstock.machine.files import READABLE_FILE, write_atomically
from penstock.machine.installation import program
from penstock.machine.system_errors import in_words
from penstock.runs.folder import RunFolder, has_checkpoint
from penstock.runs.summary import EvaluationOutcome, Summary

_HUB = "hf://"


def command(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    parser = OneLineParser(prog="penstock push", description="Publish the best policy of a run with a model card.")
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="run, by its folder or its name in runs/ (default: the newest run)"
    )
    parser.add_argument(
        "--to", required=True, metavar="PLACE", help="new folder, or hf://USER/NAME on the Hugging Face Hub"
    )
    named = parser.parse_args(list(arguments))
    place: str = named.to
    repository = place.removeprefix(_HUB) if place.startswith(_HUB) else ""
    if place.startswith(_HUB):
        extras.require("huggingface_hub", f"penstock push --to {_HUB}USER/NAME")
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository, re.ASCII):
            raise ConfigurationError(f"--to {place} is not the name of a repository; write it as {_HUB}USER/NAME")
    folder = RunFolder(chosen_run(named.run, _is_published, "a result and a checkpoint"))
    beside = Path(place).absolute().parent if not repository else None
    try:
        with tempfile.TemporaryDirectory(prefix=".push-", dir=beside) as private:
            made = Path(private) / "policy"
            made.mkdir()
            _write(folder, made, repository)
            if repository:
                print(_upload(made, repository))
                return 0
            if Path(place).exists() and any(Path(place).iterdir()):
                raise ConfigurationError(f"{place} has files already; name a new folder")
            made.replace(place)
    except OSError as error:
        raise ConfigurationError(
            f"can't write {place}: {in_words(error, Path(place), 'name another folder')}"
        ) from None
    print(place)
    return 0


def card(summary: Summary, outcome: EvaluationOutcome, repository: str) -> str:
    """Returns the model card, README.md, of a policy with this evaluation.

    `repository` is the USER/NAME that will have it on the hub; empty: a folder will have it.
    """
    environment = re.sub(r"[^\w./-]+", "-", summary.env_id).strip("-")
    reward = f"{outcome.return_mean:.2f} +/- {outcome.return_std:.2f}"
    tags = [environment, "deep-reinforcement-learning", "reinforcement-learning", "ppo", "penstock"]
    task = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
    metric = {"type": "mean_reward", "value": reward, "name": "mean_reward", "verified": False}
    result = {"task": task, "dataset": {"name": environment, "type": environment}, "metrics": [metric]}
    metadata = {
        "library_name": "penstock",
        "pipeline_tag": "reinforcement-learning",
        "tags": tags,
        "model-index": [{"name": "PPO", "results": [result]}],
    }
    folder, imports = '"FOLDER"', "import penstock"
    if repository:
        folder = f'huggingface_hub.snapshot_download("{repository}")'
        imports = "import huggingface_hub\nimport penstock"
    # JSON is YAML.
    lines = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in metadata.items()]
    return f"""---
{chr(10).join(lines)}
---

# PPO policy for {summary.env_id}

Its mean return over {outcome.episodes} episodes is {reward}, after {summary.env_steps:,} environment steps of training.
None of these episodes was used to choose the policy.

```python
{imports}

folder = {folder}
policy = penstock.load_policy(folder)
env = penstock.make(folder)
observation, info = env.reset()
action = policy.act(observation, action_mask=info.get("action_mask"))
```

`penstock evaluate FOLDER` plays episodes.
`config.toml` has all settings of the run, and `summary.json` its results.
"""


def _is_published(folder: RunFolder) -> bool:
    return folder.summary.exists() and has_checkpoint(folder)


def _write(run: RunFolder, made: Path, repository: str) -> None:
    """Writes the files into a folder. Raises `ConfigurationError` if the run has no policy with a result."""
    root = run.root
    if not root.is_dir() or not run.config.exists():
        raise ConfigurationError(f"{root} is not a run folder; name the folder of a run")
    # Nothing is imported, because the policy is not loaded.
    policy = read_policy(root, trust_code=True)
    version = policy.weights.version
    summary = Summary.read(run.summary)
    if summary.evaluation is None or summary.policy_version != version:
        raise ConfigurationError(
            f"{run.summary} has no evaluation of {policy.file} (version {version}); resume the run until its end"
            f" with `{program()} train --resume {root}`"
        )
    folder = RunFolder(made)
    folder.checkpoints.mkdir()
    write_atomically(folder.best_checkpoint, policy.weights.data, READABLE_FILE)
    shutil.copyfile(run.config, folder.config)
    dataclasses.replace(summary, run_dir=root.name).write(folder.summary)
    films = sorted(run.videos.glob(f"version-{version}-*.mp4"), key=lambda film: film.stat().st_mtime)
    if films:
        shutil.copyfile(films[-1], made / "replay.mp4")
    else:
        print(f"without a film: `{program()} evaluate {root} --record-video` makes one of this policy", file=sys.stderr)
    write_atomically(made / "README.md", card(summary, summary.evaluation, repository).encode(), READABLE_FILE)


def _upload(made: Path, repository: str) -> str:
    """Uploads a folder to a repository of the hub, which is created if there is none; returns its address.

    Raises `ConfigurationError` without a login or the network, or if the hub refuses it.
    """
    import huggingface_hub

    if huggingface_hub.get_token() is None:
        raise ConfigurationError("there is no login of the Hugging Face Hub; run `hf auth login`, or set HF_TOKEN")
    try:
        api = huggingface_hub.HfApi(library_name="penstock")
        address = api.create_repo(repository, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=made, commit_message="Add a policy trained with Penstock")
    except Exception as error:
        raise ConfigurationError(
            f"can't push to {_HUB}{repository}: {foreign_errors.describe(error)}; check the network, the login"
            " (`hf auth whoami`) and the name, or push to a folder"
        ) from None
    return str(address)
