"""A run whose folder is on the services' node, because no file system is shared: reached through Slurm's own network.

The launcher reads from there where the learner listens, gives the actors that address, and copies the folder at the
end. It must go on until then; the folder otherwise stays on its node.
"""

import contextlib
import json
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from penstock.files import make_folder, write_json
from penstock.launch import slurm
from penstock.launch.slurm_jobs import Jobs, job_file
from penstock.launch.slurm_scripts import node_folder
from penstock.run_folder import LEARNER, RunFolder

_LOOK = "if [ -s services.json ]; then cat services.json; elif [ -s summary.json ]; then echo finished; fi"


class NodeRun:
    """The folder of one run on its node, and its copy on this machine."""

    def __init__(self, folder: RunFolder, services: int, submit_actors: Callable[[str], Jobs]) -> None:
        """Takes the folder here and the number of the services' job.

        `submit_actors` submits the array for the learner at an address. It is called once, when that is known.
        """
        self._folder, self._services, self._submit_actors = folder, services, submit_actors
        self._place = Path(node_folder(str(services)))
        self.jobs: Jobs | None = None

    @property
    def place(self) -> str:
        """Where the run's folder is, for users."""
        node = slurm.state_of(self._services).node
        return f"{node or 'the node of the services'}:{self._place}"

    def update(self) -> None:
        """Brings this machine's folder up to date: the list of services while the run goes on, and all at its end.

        Call it while the job runs.
        """
        # A node that has just started the job has no folder yet.
        found = self._on_node(f"cd {self._place} 2>/dev/null && {{ {_LOOK}; }}; true")
        if found == "finished":
            self._copy()
        elif found:
            services = json.loads(found)
            write_json(self._folder.services, services)
            if self.jobs is None:
                self.jobs = self._submit_actors(str(services[LEARNER]))
                numbers = {"services": self.jobs.services, "actors": self.jobs.actors}
                for name, number in numbers.items():
                    self._on_node(f"echo {number} >{job_file(RunFolder(self._place), name)}")

    def _copy(self) -> None:
        with tempfile.TemporaryFile(dir=self._folder.root) as packed:
            slurm.run_in_job(
                self._services, f"tar -C {self._place} --exclude=./launch --exclude=./certificates -cf - .", packed
            )
            packed.seek(0)
            with (
                tarfile.open(fileobj=packed) as archive,
                tempfile.TemporaryDirectory(prefix=".copied-", dir=self._folder.root) as private,
            ):
                # Filters exist since Python 3.11.4; Debian 12 has 3.11.2.
                if hasattr(tarfile, "data_filter"):
                    archive.extraction_filter = tarfile.data_filter
                archive.extractall(private)
                # The archive's own files are ours, whatever is in their places.
                for copied in Path(private).rglob("*"):
                    place = self._folder.root / copied.relative_to(private)
                    if copied.is_dir():
                        make_folder(place)
                    else:
                        copied.replace(place)
        self._on_node(f"touch {self._place}/launch/copied")
        with contextlib.suppress(OSError):
            self._folder.services.unlink()

    def _on_node(self, script: str) -> str:
        with tempfile.TemporaryFile() as output:
            slurm.run_in_job(self._services, script, output)
            output.seek(0)
            return output.read().decode().strip()
