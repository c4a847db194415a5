import subprocess
import sys

from tests.support.machine.timing import PATIENCE_S

SCRIPT = """
import resource
from penstock.process.service import Service
from penstock.config import Config
with Service("replay", Config(replay={"listen": "127.0.0.1:0", "metrics_port": 0}, telemetry={"log_format": "json"})):
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_a_service_raises_its_limit_of_open_files_to_the_hard_limit() -> None:
    command = ["sh", "-c", 'ulimit -Sn 128 && ulimit -Hn 512 && exec "$@"', "sh", sys.executable, "-c", SCRIPT]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert ended.stdout.split() == ["512", "512"]
