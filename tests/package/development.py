"""Times `make install` in a copy of the sources.

    python -m tests.package.development

The result is build/development.json.
"""

import json
import subprocess
import tempfile
import time
from pathlib import Path

from tests.package.distributions import ROOT, copy_sources
from tests.support.results import provenance

OUTPUT = ROOT / "build" / "development.json"


def main() -> None:
    """Installs, and writes seconds and size."""
    with tempfile.TemporaryDirectory() as folder:
        source = copy_sources(Path(folder))
        started = time.monotonic()
        subprocess.run(["make", "install"], cwd=source, check=True)
        seconds = time.monotonic() - started
        files = [file for file in (source / ".venv").rglob("*") if file.is_file() and not file.is_symlink()]
        result = {
            **provenance.of_this_run(),
            "seconds_with_downloads": round(seconds, 1),
            "size_mb": round(sum(file.stat().st_size for file in files) / 1e6, 1),
        }
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
