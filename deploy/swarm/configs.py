"""Names of the configurations of the stack, each with a digest of its file; `make swarm-configs` writes them.

Swarm refuses to change a configuration, but replaces one by another of a new name when a stack is deployed again.
"""

import hashlib
import re
from pathlib import Path

FILES = tuple(Path(__file__).parent / name for name in ("stack.yml", "autoscale.yml"))
_DIGITS = 8


def render(file: Path) -> str:
    """Returns the text of a file with current names."""
    text = file.read_text()
    files = dict(re.findall(r"^  \*(\S+) : \{file: (\S+)\}$", text, re.MULTILINE))

    def named(found: re.Match[str]) -> str:
        name = found[1]
        digest = hashlib.sha256((file.parent / files[name]).read_bytes()).hexdigest()
        return f"  - &{name} {name}-{digest[:_DIGITS]}"

    return re.sub(r"^  - &(\S+) \S+$", named, text, flags=re.MULTILINE)


if __name__ == "__main__":
    for each in FILES:
        each.write_text(render(each))
