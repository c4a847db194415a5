"""The pods of deploy/kubernetes as processes of this machine, which stand in for a cluster.

Each pod has a network namespace with an address of its own, and a mount namespace: a read-only root, the volumes of its
manifest, and the compiled code of the image. Its command, variables and probes are those of the rendered objects,
unchanged. Names of Services and pods are entries of /etc/hosts, as the cluster's DNS would answer; a pod that is
started again has another address. Not covered: the user of the pod, the scheduler, controllers, and policies.

It needs root, `ip`, `unshare`, `nsenter` and `setpriv`.
"""

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from helpers.processes import PENSTOCK, Command, Ended, run
from penstock.rpc.health import is_serving
from tests.deploy.manifests import FOLDER, ROOT, Object, Pod, arguments, environment, pods, rendered_folder, resolved

WORKING_DIRECTORY = "/var/lib/penstock"
"""That of the images."""

_NAMESPACES = ("unshare", "--mount", "--uts")
_BEFORE = ("ip", "unshare", "sh", "setpriv")
"""Programs that prepare a pod, in the process that becomes its own."""

_INSIDE = """
set -e
echo "$CLUSTER_NAME" > /proc/sys/kernel/hostname
mount --make-rprivate /
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /var/cache
mkdir -p /var/cache/penstock /var/lib/penstock
mount --bind "$CLUSTER_COMPILED" /var/cache/penstock
mount -o remount,bind,ro /var/cache/penstock
for volume in $CLUSTER_VOLUMES; do
    mkdir -p "${volume#*:}"
    mount --bind "${volume%%:*}" "${volume#*:}"
done
mount -o remount,bind,ro /var/lib
mount --bind "$CLUSTER_HOSTS" /etc/hosts
mount --bind "$CLUSTER_TMP" /tmp
mount -o remount,bind,ro /
cd "$CLUSTER_DIRECTORY"
unset CLUSTER_NAME CLUSTER_DIRECTORY CLUSTER_COMPILED CLUSTER_VOLUMES CLUSTER_HOSTS CLUSTER_TMP
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


def unavailable() -> str:
    """Returns the reason why this machine can't run pods; empty if it can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    missing = [each for each in ("ip", "unshare", "nsenter", "setpriv") if shutil.which(each) is None]
    if missing:
        return f"pods need {', '.join(missing)}"
    try:
        with Network():
            subprocess.run([*_NAMESPACES, "true"], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        return f"pods need namespaces and bridges: {error.stderr.decode().strip()}"
    return ""


class Network:
    """A bridge in a namespace of its own, to which the node, that is this machine, and every pod are connected."""

    def __init__(self) -> None:
        # 198.18.0.0/15 is reserved for tests between networks (RFC 2544). Random, because test runs share the machine.
        self._subnet = f"198.{18 + secrets.randbelow(2)}.{secrets.randbelow(256)}"
        self._name, self._last, self._namespaces = f"pods{secrets.token_hex(3)}", 1, list[str]()

    def __enter__(self) -> "Network":
        try:
            self._add(self._name)
            ip("-n", self._name, "link", "add", "bridge", "type", "bridge")
            ip("-n", self._name, "link", "set", "bridge", "up")
            ip("link", "add", self._name, "type", "veth", "peer", "name", "node", "netns", self._name)
            self._plug("node")
            ip("address", "add", f"{self._subnet}.1/24", "dev", self._name)
            ip("link", "set", self._name, "up")
        except subprocess.CalledProcessError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for namespace in self._namespaces:
            # Devices end with their namespace, and the node's with its other end.
            ip("netns", "delete", namespace)

    def pod(self) -> tuple[str, str]:
        """Adds a namespace for a pod. Returns its name and its address."""
        self._last += 1
        namespace, port = f"{self._name}-{self._last}", f"pod{self._last}"
        self._add(namespace)
        ip("-n", self._name, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        self._plug(port)
        address = f"{self._subnet}.{self._last}"
        ip("-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", namespace, "link", "set", device, "up")
        return namespace, address

    def _add(self, namespace: str) -> None:
        ip("netns", "add", namespace)
        self._namespaces.append(namespace)

    def _plug(self, port: str) -> None:
        ip("-n", self._name, "link", "set", port, "master", "bridge")
        ip("-n", self._name, "link", "set", port, "up")


@dataclass(frozen=True)
class Running:
    """A started pod.

    Attributes:
        pod: Its manifest.
        address: Its address.
        environment: Its variables.
        command: Its process.
    """

    pod: Pod
    address: str
    environment: Mapping[str, str]
    command: Command

    def probe(self, kind: str) -> bool:
        """Returns whether one check of a probe, such as livenessProbe, succeeds, as the kubelet asks."""
        probe = self.pod.container[kind]
        return is_serving(f"{self.address}:{probe['grpc']['port']}", probe.get("timeoutSeconds", 1))

    def until_started(self) -> None:
        """Waits for the startup probe."""
        self.command.until(lambda: self.probe("startupProbe"), f"{self.pod} to start")

    def run(self, *arguments: str) -> Ended:
        """Runs a `penstock` command inside the pod, as `kubectl exec` does."""
        comm = Path(f"/proc/{self.command.pid}/comm")
        self.command.until(lambda: comm.read_text().strip() not in _BEFORE, f"the volumes of {self.pod}")
        inside = ("nsenter", "--target", str(self.command.pid), "--net", "--mount", "--uts")
        program = (*inside, f"--wdns={self.pod.container.get('workingDir', WORKING_DIRECTORY)}", PENSTOCK)
        return run(*arguments, program=program, environment=self.environment)

    def drain(self) -> tuple[int, float]:
        """Ends the pod as a drained node does. Returns its exit code, and the share of its grace period that passed."""
        grace_s, started = self.pod.spec["terminationGracePeriodSeconds"], time.monotonic()
        self.command.process.send_signal(signal.SIGTERM)
        code = self.command.wait()
        return code, (time.monotonic() - started) / grace_s

    @cached_property
    def metrics(self) -> str:
        """Address at which Prometheus scrapes the pod."""
        return f"http://{self.address}:{self.pod.ports['metrics']}/metrics"


class Cluster:
    """A namespace of a cluster with the pods of an overlay. Leaving the context ends them."""

    def __init__(self, place: Path, **settings: object) -> None:
        """Applies deploy/kubernetes with these variables as further settings, in an overlay of the user's own."""
        self._place, self._stack = place, ExitStack()
        self._started = dict[str, list[Running]]()
        self.apply(**settings)

    def __enter__(self) -> "Cluster":
        self._network = self._stack.enter_context(Network())
        self._hosts = self._place / "hosts"
        self._hosts.touch()
        self._compile()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def apply(self, **settings: object) -> None:
        """Renders the objects again with other settings. Running pods keep theirs."""
        overlay = self._place / f"overlay-{secrets.token_hex(2)}"
        overlay.mkdir()
        lines = "".join(f"      - {name}={value}\n" for name, value in settings.items())
        (overlay / "kustomization.yaml").write_text(
            f"resources: [{os.path.relpath(FOLDER, overlay.resolve())}]\n"
            f"configMapGenerator:\n  - name: penstock-settings\n    behavior: merge\n    literals:\n{lines}"
        )
        self.objects: list[Object] = rendered_folder(overlay)

    def start(self, component: str) -> Running:
        """Starts a pod of a component."""
        [pod] = [each for each in pods(self.objects) if each.component == component]
        if not pod.hostnames:
            # Only pods of a StatefulSet keep their names.
            pod = replace(pod, name=f"{pod.name}-{secrets.token_hex(3)}")
        namespace, address = self._network.pod()
        variables = {**environment(pod, self.objects), **image()}
        program = ["ip", "netns", "exec", namespace, *_NAMESPACES, "sh", "-c", _INSIDE, "sh"]
        if "command" not in pod.container:
            program.append(PENSTOCK)
        command = self._stack.enter_context(
            Command(*arguments(pod, self.objects), environment=variables | self._files(pod), program=program)
        )
        running = Running(pod, address, variables, command)
        self._started.setdefault(component, []).append(running)
        self._publish()
        return running

    def running(self, component: str) -> Iterator[Running]:
        """Yields the pods of a component that have not ended."""
        for each in self._started.get(component, ()):
            if each.command.process.poll() is None:
                yield each

    def claim(self, name: str) -> Path:
        """Returns the folder of a volume that outlives pods."""
        folder = self._place / "claims" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _files(self, pod: Pod) -> dict[str, str]:
        """Returns the variables that tell the pod's mount namespace what to mount."""
        sources: dict[str, Path] = {name: self.claim(f"{name}-{pod.name}") for name in pod.claims}
        for volume in pod.spec["volumes"]:
            if "persistentVolumeClaim" in volume:
                sources[volume["name"]] = self.claim(volume["persistentVolumeClaim"]["claimName"])
        tmp = self._place / f"tmp-{secrets.token_hex(4)}"
        tmp.mkdir()
        mounts = {mount["name"]: mount["mountPath"] for mount in pod.container["volumeMounts"]}
        assert mounts.pop("tmp") == "/tmp"
        return {
            "CLUSTER_NAME": pod.name,
            "CLUSTER_DIRECTORY": pod.container.get("workingDir", WORKING_DIRECTORY),
            "CLUSTER_COMPILED": str(self._compiled),
            "CLUSTER_VOLUMES": " ".join(f"{sources[name]}:{path}" for name, path in mounts.items()),
            "CLUSTER_HOSTS": str(self._hosts),
            "CLUSTER_TMP": str(tmp),
        }

    def _publish(self) -> None:
        """Writes what the cluster's DNS would answer: the names of pods, and of Services for their pods."""
        names = {name for pod in pods(self.objects) for name in pod.hostnames}
        names |= {each["metadata"]["name"] for each in self.objects if each["kind"] == "Service"}
        lines = [
            f"{running.address} {name}"
            for name in sorted(names)
            for pod in resolved(name, self.objects)
            for running in self.running(pod.component)
        ]
        # In place, because pods have mounted this file.
        self._hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{line}\n" for line in lines))

    def _compile(self) -> None:
        """Compiles what the image contains, with its own command."""
        self._compiled = self._place / "compiled"
        self._compiled.mkdir()
        [imports] = set(re.findall(r'^RUN \["python", "-c", "(.*)"\]$', _dockerfile(), re.MULTILINE))
        variables = {**os.environ, "NUMBA_CACHE_DIR": str(self._compiled)}
        subprocess.run([sys.executable, "-c", imports], check=True, env=variables)


def image() -> Mapping[str, str]:
    """Returns the variables of the image of the actors, but the path of its programs."""
    variables: dict[str, str] = {}
    for line in re.findall(r"^ENV ((?:.*\\\n)*.*)$", _dockerfile().rpartition("FROM")[2], re.MULTILINE):
        variables |= dict(each.split("=", 1) for each in line.replace("\\\n", " ").split())
    return {name: value for name, value in variables.items() if name not in ("PATH", "PENSTOCK_COMMIT")}


def ip(*arguments: str) -> None:
    """Runs `ip`. Raises `subprocess.CalledProcessError` if it fails."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _dockerfile() -> str:
    return (ROOT / "Dockerfile.actor").read_text()
