"""The pods of deploy/kubernetes as processes of this machine, which stand in for a cluster.

Each pod has a network namespace with an address of its own, and a mount namespace: a read-only root, the volumes of its
manifest, and the compiled code of the image. Its command, variables and probes are those of the rendered objects,
unchanged. Names of Services and pods are entries of /etc/hosts, as the cluster's DNS would answer; a pod that is
started again has another address. Files of Secrets are links as in a kubelet, which replaces all of a Secret at once.
Not covered: the user of the pod, who is root here, the scheduler, controllers, and policies.

It needs root, `ip`, `unshare`, `nsenter` and `setpriv`.
"""

import base64
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from penstock.rpc.health import is_serving
from penstock.security.authority import files_of
from penstock.security.credentials import Credentials
from tests.deploy.manifests import (
    CONTAINER,
    FOLDER,
    ROOT,
    Object,
    Pod,
    arguments,
    environment,
    named,
    pods,
    rendered_folder,
    resolved,
)
from tests.support.services.processes import PENSTOCK, Command, Ended, run

WORKING_DIRECTORY = "/var/lib/penstock"
"""That of the images."""

_SECRET_MODE = 0o400
"""Mode of a key. In a cluster it is root's and the group of the pod may read it; here the pod's user is root."""

_NAMESPACES = ("unshare", "--mount", "--uts")
_BEFORE = ("ip", "unshare", "sh", "setpriv")
"""Programs that prepare a pod, in the process that becomes its own."""

_INSIDE = """
set -e
IFS='
'
echo "$CLUSTER_NAME" > /proc/sys/kernel/hostname
mount --make-rprivate /
mount --rbind / /mnt
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /var/cache
mkdir -p /var/cache/penstock /var/lib/penstock /var/cache/etc
cp -a /etc/. /var/cache/etc
mount --bind /var/cache/etc /etc
mount --bind "$CLUSTER_COMPILED" /var/cache/penstock
mount -o remount,bind,ro /var/cache/penstock
for volume in $CLUSTER_VOLUMES; do
    place=${volume#*:}
    place=${place%:*}
    mkdir -p "$place"
    mount --bind "${volume%%:*}" "$place"
    mount -o "remount,bind,${volume##*:}" "$place"
done
mount -o remount,bind,ro /var/lib
mount --bind "$CLUSTER_HOSTS" /etc/hosts
mount -o remount,bind,ro /etc
mount --bind "$CLUSTER_TMP" /tmp
for folder in $CLUSTER_PROGRAMS; do
    if ! [ -d "$folder" ]; then
        mkdir -p "$folder"
        mount --bind "/mnt$folder" "$folder"
    fi
done
umount --recursive --lazy /mnt
mount -o remount,bind,ro /
cd "$CLUSTER_DIRECTORY"
unset IFS CLUSTER_NAME CLUSTER_DIRECTORY CLUSTER_COMPILED CLUSTER_VOLUMES CLUSTER_HOSTS CLUSTER_TMP CLUSTER_PROGRAMS
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
        return self._start(pod, component, self._sources(pod))

    def certify(self) -> None:
        """Does what the job of the certificates does: makes them in a pod, and stores the Secrets."""
        template = named(self.objects, "Job", "penstock-certificates")["spec"]["template"]
        spec, [make] = template["spec"], template["spec"]["initContainers"]
        container = {**make, "name": CONTAINER}
        pod = Pod(
            "Job", "certificates", (), template["metadata"]["labels"], {}, {**spec, "containers": [container]}, {}
        )
        sources = self._sources(pod)
        command = self._start(pod, "certificates", sources).command
        assert command.wait() == 0, command.stderr
        [folder] = [sources[each["name"]] for each in spec["volumes"] if "emptyDir" in each]
        for secret in rendered_folder(folder):
            assert secret["kind"] == "Secret"
            data = {name: base64.b64decode(value) for name, value in secret["data"].items()}
            _project(data, self._secret(secret["metadata"]["name"]))

    @property
    def operator(self) -> Credentials:
        """Credentials of the user of this cluster."""
        return Credentials(files_of(self._secret("penstock-certificate-operator")), "operator")

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

    def _start(self, pod: Pod, component: str, sources: Mapping[str, Path]) -> Running:
        namespace, address = self._network.pod()
        variables = {**environment(pod, self.objects), **image()}
        program = ["ip", "netns", "exec", namespace, *_NAMESPACES, "sh", "-c", _INSIDE, "sh"]
        if "command" not in pod.container:
            program.append(PENSTOCK)
        own = variables | self._files(pod, sources)
        command = self._stack.enter_context(Command(*arguments(pod, self.objects), environment=own, program=program))
        running = Running(pod, address, variables, command)
        self._started.setdefault(component, []).append(running)
        self._publish()
        return running

    def _files(self, pod: Pod, sources: Mapping[str, Path]) -> dict[str, str]:
        """Returns the variables that tell the pod's mount namespace what to mount."""
        mounts = {mount["mountPath"]: mount for mount in pod.container["volumeMounts"]}
        tmp = sources[mounts.pop("/tmp")["name"]] if "/tmp" in mounts else self._new("tmp")
        volumes = (
            f"{sources[mount['name']]}:{path}:{'ro' if mount.get('readOnly') else 'rw'}"
            for path, mount in mounts.items()
        )
        return {
            "CLUSTER_NAME": pod.name,
            "CLUSTER_DIRECTORY": pod.container.get("workingDir", WORKING_DIRECTORY),
            "CLUSTER_COMPILED": str(self._compiled),
            "CLUSTER_VOLUMES": "\n".join(volumes),
            "CLUSTER_HOSTS": str(self._hosts),
            "CLUSTER_TMP": str(tmp),
            "CLUSTER_PROGRAMS": "\n".join(_hidden_programs(("/tmp", "/var/lib", "/var/cache", *mounts))),
        }

    def _sources(self, pod: Pod) -> dict[str, Path]:
        """Returns the folders of this machine that are the pod's volumes."""
        claimed = {name: self.claim(f"{name}-{pod.name}") for name in pod.claims}
        return claimed | {volume["name"]: self._source(volume) for volume in pod.spec["volumes"]}

    def _source(self, volume: Object) -> Path:
        [kind] = volume.keys() - {"name"}
        of_kind = volume[kind]
        match kind:
            case "persistentVolumeClaim":
                return self.claim(of_kind["claimName"])
            case "secret":
                secret = self._secret(of_kind["secretName"])
                # A pod waits for a Secret that is not optional.
                assert secret.exists() or of_kind.get("optional"), f"there is no Secret {secret.name}"
                return secret if secret.exists() else self._new("empty")
            case "configMap":
                folder = self._new("settings")
                for name, text in named(self.objects, "ConfigMap", of_kind["name"])["data"].items():
                    (folder / name).write_text(text)
                return folder
            case "emptyDir":
                return self._new("empty")
        raise AssertionError(f"unknown volume {volume}")

    def _secret(self, name: str) -> Path:
        return self._place / "secrets" / name

    def _new(self, kind: str) -> Path:
        folder = self._place / f"{kind}-{secrets.token_hex(4)}"
        folder.mkdir()
        return folder

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
        lines = re.findall(r'python -c "(.*?)"', _dockerfile())
        assert lines
        variables = {**os.environ, "NUMBA_CACHE_DIR": str(self._compiled)}
        for imports in lines:
            subprocess.run([sys.executable, "-c", imports], check=True, env=variables)


def image() -> Mapping[str, str]:
    """Returns the variables of the image of the actors, with the path of this environment's programs."""
    variables: dict[str, str] = {}
    for line in re.findall(r"^ENV ((?:.*\\\n)*.*)$", _dockerfile().rpartition("FROM")[2], re.MULTILINE):
        variables |= dict(each.split("=", 1) for each in line.replace("\\\n", " ").split())
    own = {name: value for name, value in variables.items() if name != "PATH"}
    return {**own, "PATH": os.pathsep.join([str(Path(PENSTOCK).parent), os.environ["PATH"]])}


def _hidden_programs(places: Iterable[str]) -> list[str]:
    """Returns the folders that take the place of the image's, as far as a pod's volumes at these places hide them."""
    programs = (str(ROOT), sys.prefix, sys.base_prefix)
    return [folder for folder in programs if any(Path(folder).is_relative_to(place) for place in places)]


def _project(data: Mapping[str, bytes], folder: Path) -> None:
    """Writes or replaces a Secret as a kubelet does: its files are links through one that is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    version = folder / f"..{secrets.token_hex(4)}"
    version.mkdir()
    for name, content in data.items():
        (version / name).write_bytes(content)
        (version / name).chmod(_SECRET_MODE)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    (folder / "..new").symlink_to(version.name)
    (folder / "..new").replace(folder / "..data")


def ip(*arguments: str) -> None:
    """Runs `ip`. Raises `subprocess.CalledProcessError` if it fails."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _dockerfile() -> str:
    return (ROOT / "Dockerfile.actor").read_text()
