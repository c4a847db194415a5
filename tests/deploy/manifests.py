"""deploy/kubernetes as kubectl renders it, and what a kubelet makes of its pods.

There is no cluster here: `rendered` calls Kustomize, and the rest repeats the rules by which Kubernetes connects
objects.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from penstock.cli.options import parse
from penstock.config import Config
from tests.support.machine.timing import PATIENCE_S

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
EXAMPLE = ROOT / "examples" / "kubernetes"
CONTAINER = "penstock"
"""Name of the container of every service."""

Object = dict[str, Any]
_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def overlays() -> list[str]:
    """Returns the folders that users apply; components can only be parts of them."""
    return [
        str(file.parent.relative_to(ROOT))
        for root in (FOLDER, EXAMPLE)
        for file in sorted(root.rglob("kustomization.yaml"))
        if yaml.safe_load(file.read_text())["kind"] == "Kustomization"
    ]


def rendered(overlay: str = "deploy/kubernetes") -> list[Object]:
    """Returns the objects of a folder of the repository."""
    return rendered_folder(ROOT / overlay)


@cache
def rendered_folder(folder: Path) -> list[Object]:
    """Returns the objects of a kustomization. Raises `CalledProcessError` if Kustomize refuses it."""
    kubectl = Path(sys.executable).with_name("kubectl")
    shown = subprocess.run(
        [kubectl, "kustomize", str(folder)], check=True, capture_output=True, text=True, timeout=PATIENCE_S
    )
    return list(yaml.safe_load_all(shown.stdout))


def of_kind(objects: Iterable[Object], *kinds: str) -> list[Object]:
    """Returns the objects of these kinds."""
    return [each for each in objects if each["kind"] in kinds]


def named(objects: Iterable[Object], kind: str, name: str) -> Object:
    """Returns the one object of this kind and name."""
    [found] = [each for each in of_kind(objects, kind) if each["metadata"]["name"] == name]
    return found


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as its workload creates it.

    Attributes:
        workload: Kind and name of the object that creates it, such as Job/penstock-learner.
        name: Name of the first of its pods, as far as the workload determines it.
        hostnames: Names, besides its address, by which DNS knows it: pod name and governing Service.
        labels: Labels of the pod.
        annotations: Annotations that the workload's controller adds.
        spec: The pod's specification.
        claims: Volumes by claims that the workload creates itself.
    """

    workload: str
    name: str
    hostnames: tuple[str, ...]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: Object
    claims: Mapping[str, Object]

    @property
    def component(self) -> str:
        """Role of the pod in the run, such as actor."""
        return self.labels["app.kubernetes.io/component"]

    @property
    def container(self) -> Object:
        """Container of the service."""
        [container] = self.spec["containers"]
        assert container["name"] == CONTAINER
        return dict(container)

    @property
    def ports(self) -> dict[str, int]:
        """Ports of the container by name."""
        return {port["name"]: port["containerPort"] for port in self.container.get("ports", ())}

    def __str__(self) -> str:
        return self.workload


def pods(objects: Iterable[Object]) -> list[Pod]:
    """Returns a pod of every workload of the run."""
    found = []
    for each in objects:
        for index, (job, template) in enumerate(_templates(each)):
            labels = template["metadata"]["labels"]
            if labels["app.kubernetes.io/name"] != "penstock":
                continue
            workload, name = f"{each['kind']}/{each['metadata']['name']}{job and f'/{job}'}", each["metadata"]["name"]
            hostnames: tuple[str, ...] = ()
            annotations: dict[str, str] = {}
            if each["kind"] == "StatefulSet":
                name = f"{name}-0"
                hostnames = (f"{name}.{each['spec']['serviceName']}",)
            elif each["kind"] == "JobSet":
                name = f"{name}-{job}-0-0"
                hostnames = (f"{name}.{each['spec']['network']['subdomain']}",)
                annotations = {"jobset.sigs.k8s.io/job-global-index": str(index)}
            claims = {claim["metadata"]["name"]: claim for claim in each["spec"].get("volumeClaimTemplates", ())}
            found.append(Pod(workload, name, hostnames, labels, annotations, template["spec"], claims))
    return found


def environment(pod: Pod, objects: Iterable[Object], *, node: str = "node-1") -> dict[str, str]:
    """Returns the container's environment variables, in which `env` overrides `envFrom`.

    A reference $(NAME) in `env` sees earlier entries of `env` alone, as in a kubelet.
    """
    values: dict[str, str] = {}
    for source in pod.container.get("envFrom", ()):
        [(kind, reference)] = source.items()
        assert kind == "configMapRef"
        values |= named(objects, "ConfigMap", reference["name"])["data"]
    own: dict[str, str] = {}
    for entry in pod.container.get("env", ()):
        if "value" in entry:
            own[entry["name"]] = expanded(entry["value"], own)
        else:
            own[entry["name"]] = _field(pod, entry["valueFrom"]["fieldRef"]["fieldPath"], node)
    return values | own


def arguments(pod: Pod, objects: Iterable[Object]) -> list[str]:
    """Returns the arguments of the image's entry point, or the command and arguments that replace it."""
    variables = environment(pod, objects)
    given = [*pod.container.get("command", ()), *pod.container.get("args", ())]
    return [expanded(each, variables) for each in given]


def settings(pod: Pod, objects: Iterable[Object]) -> Config:
    """Returns the settings with which a service starts. Raises `ConfigurationError` if it would refuse them."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK")}
    with mock.patch.dict(os.environ, {**others, **environment(pod, objects)}, clear=True):
        command, *options = arguments(pod, objects)
        return parse(f"penstock {command}", "", options, trains=False).config


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Replaces references $(NAME) to known variables; others stay, and $$ is $."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)", value, text)


def size(text: str) -> int:
    """Parses a quantity of memory or storage, in bytes."""
    number, unit = re.fullmatch(r"(\d+)(Ki|Mi|Gi)", text).groups()  # type: ignore[union-attr]
    return int(number) * _UNITS[unit]


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Returns whether a label selector, of a Service or of matchLabels and matchExpressions, selects the labels."""
    if selector.keys() - {"matchLabels", "matchExpressions"}:
        return all(labels.get(name) == value for name, value in selector.items())
    for expression in selector.get("matchExpressions", ()):
        value, values = labels.get(expression["key"]), expression.get("values", ())
        match expression["operator"]:
            case "In":
                fits = value in values
            case "NotIn":
                fits = value not in values
            case "Exists":
                fits = value is not None
            case "DoesNotExist":
                fits = value is None
            case other:
                raise AssertionError(f"unknown operator {other}")
        if not fits:
            return False
    return all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items())


def resolved(host: str, objects: Iterable[Object]) -> list[Pod]:
    """Returns the pods that a short name of a Service or of a pod stands for."""
    objects = list(objects)
    found = [pod for pod in pods(objects) if host in pod.hostnames]
    if found:
        governing = host.partition(".")[2]
        if not of_kind(objects, "JobSet"):
            # The controller of a JobSet creates its Service.
            assert named(objects, "Service", governing)["spec"]["clusterIP"] == "None"
        return found
    return [pod for pod in pods(objects) if matches(named(objects, "Service", host)["spec"]["selector"], pod.labels)]


def allowed(source: Pod, target: Pod, port: int, objects: Iterable[Object]) -> bool:
    """Returns whether the network policies let TCP connections pass from one pod to a port of another."""
    policies = [each["spec"] for each in of_kind(objects, "NetworkPolicy")]
    return _passes(policies, source, target, port, "Egress", "to") and _passes(
        policies, target, source, port, "Ingress", "from"
    )


def _passes(policies: list[Object], held: Pod, other: Pod, port: int, direction: str, peers: str) -> bool:
    applying = [
        each for each in policies if direction in each["policyTypes"] and matches(each["podSelector"], held.labels)
    ]
    rules = [rule for each in applying for rule in each.get(direction.lower(), ())]
    return not applying or any(_opens(rule, peers, other, port) for rule in rules)


def _opens(rule: Object, peers: str, other: Pod, port: int) -> bool:
    """Returns whether a rule admits a pod of the run's namespace at a TCP port."""
    ports = rule.get("ports")
    if ports is not None and not any(
        each.get("protocol", "TCP") == "TCP" and each["port"] <= port <= each.get("endPort", each["port"])
        for each in ports
    ):
        return False
    named_peers = rule.get(peers)
    return named_peers is None or any(matches(peer["podSelector"], other.labels) for peer in named_peers)


def _templates(each: Object) -> Iterator[tuple[str, Object]]:
    """Yields the pod templates of an object that creates pods, each with the name of its job in a JobSet."""
    spec = each.get("spec", {})
    if each["kind"] == "JobSet":
        for job in spec["replicatedJobs"]:
            # One job each, so that the number of a job is its index.
            assert job.get("replicas", 1) == 1
            yield job["name"], job["template"]["spec"]["template"]
    elif "template" in spec:
        yield "", spec["template"]


def _field(pod: Pod, path: str, node: str) -> str:
    values = {"metadata.name": pod.name, "spec.nodeName": node}
    if found := re.fullmatch(r"metadata\.annotations\['(.*)'\]", path):
        return pod.annotations[found[1]]
    return values[path]
