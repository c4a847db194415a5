"""A browser without a window: shows a page at a width and in a color scheme, runs a script in it, and draws it.

It speaks the DevTools protocol over two pipes, which needs neither a port nor a package.

    python -m tests.docs.browser FOLDER 390 dark index replay    # draws pages of build/docs
"""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

from tests.docs.pages import ROOT

PROGRAM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
SITE = ROOT / "build" / "docs"
HEIGHT = 900

Scheme = Literal["light", "dark"]


class Browser:
    """One tab of Chromium. Used by one thread."""

    def __init__(self, commands: BinaryIO, answers: BinaryIO) -> None:
        """Opens the tab. The pipes are those of a process of Chromium."""
        self._commands, self._answers = commands, answers
        self._buffer, self._last, self._tab = b"", 0, {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._tab = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        self.call("Page.enable")

    def show(self, page: Path) -> None:
        """Shows a file, and waits until it is complete."""
        self.call("Page.navigate", url=page.as_uri())
        while self._message().get("method") != "Page.loadEventFired":
            pass

    def resize(self, width: int) -> None:
        """Sets the width of the window in pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=HEIGHT, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme: Scheme) -> None:
        """Sets the color scheme that the user prefers."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def run(self, script: str) -> Any:
        """Returns the value of an expression in the page. Raises `RuntimeError` if it fails."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def draw(self) -> bytes:
        """Returns a picture of the whole page as PNG."""
        width, height = self.run("[innerWidth, document.scrollingElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        drawn = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(drawn["data"])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Returns the result of a method of the protocol. Raises `RuntimeError` if it is refused."""
        self._last += 1
        command = {"id": self._last, "method": method, "params": parameters, **self._tab}
        self._commands.write(json.dumps(command).encode() + b"\0")
        self._commands.flush()
        while (answer := self._message()).get("id") != self._last:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            received = os.read(self._answers.fileno(), 1 << 20)
            if not received:
                raise RuntimeError("the browser has ended")
            self._buffer += received
        first, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message


@contextlib.contextmanager
def opened() -> Iterator[Browser]:
    """Opens the browser, which must be installed, and ends it."""
    commands_read, commands_write = os.pipe()
    answers_read, answers_write = os.pipe()
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe")
    # Chromium reads commands from descriptor 3 and writes answers to descriptor 4.
    script = f'exec "$0" "$@" 3<&{commands_read} 4>&{answers_write}'
    process = subprocess.Popen(
        ["bash", "-c", script, str(PROGRAM), *options],
        pass_fds=(commands_read, answers_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(commands_read)
    os.close(answers_write)
    with os.fdopen(commands_write, "wb") as commands, os.fdopen(answers_read, "rb") as answers:
        try:
            yield Browser(commands, answers)
        finally:
            process.kill()
            process.wait()


def main() -> None:
    """Draws pages of the site."""
    folder, width, scheme, *names = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    with opened() as browser:
        browser.resize(int(width))
        browser.prefer("dark" if scheme == "dark" else "light")
        for name in names:
            browser.show(SITE / f"{name}.html")
            picture = Path(folder) / f"{name.replace('/', '-')}-{width}-{scheme}.png"
            picture.write_bytes(browser.draw())
            print(picture)


if __name__ == "__main__":
    main()
