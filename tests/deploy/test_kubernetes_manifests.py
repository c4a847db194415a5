"""deploy/kubernetes: its objects refer to each other correctly, which schemas can't see."""

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.config import Config
from penstock.config.exposure import check_listen
from penstock.errors import GAVE_UP, USAGE_ERROR
from penstock.security.roles import SERVERS
from tests.deploy.manifests import (
    CONTAINER,
    EXAMPLE,
    ROOT,
    Pod,
    allowed,
    arguments,
    environment,
    matches,
    named,
    of_kind,
    overlays,
    pods,
    rendered,
    resolved,
    settings,
    size,
)
from tests.rules import for_each
from tests.support.machine.timing import PATIENCE_S

SPARE_BYTES = 400 * 10**6
"""Memory of a replay service beyond the pages of its store."""

CONNECTIONS = {
    (source, target, port)
    for source, target in (
        ("actor", "learner"),
        ("actor", "replay"),
        ("evaluator", "learner"),
        ("learner", "replay"),
        # `penstock status`.
        ("tools", "learner"),
        ("tools", "replay"),
    )
    # `penstock health` says whether a connection is possible.
    for port in ("grpc", "health", "streams")
}
"""Connections inside a run, by the components that open and accept them."""

EVERYONE = [(overlay, pod) for overlay in overlays() for pod in pods(rendered(overlay))]


def params(*components: str) -> list[Any]:
    """Returns the pods of these components in every overlay, as parameters of a test."""
    return [
        pytest.param(overlay, pod, id=f"{overlay}: {pod}") for overlay, pod in EVERYONE if pod.component in components
    ]


EACH_POD = params("replay", "learner", "rank", "actor", "evaluator", "tools")
SERVICES = params("replay", "learner", "actor", "evaluator")
RANKS = [each for each in overlays() if of_kind(rendered(each), "JobSet")]
BASE = "deploy/kubernetes/base"
ENDING = [each for each in overlays() if each not in (*RANKS, BASE)]


def own(config: Config, pod: Pod) -> Any:
    """Returns the section of the pod's service."""
    return getattr(config, {"evaluator": "evaluation"}.get(pod.component, pod.component))


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


@for_each(("overlay", "pod"), SERVICES)
def test_a_service_listens_where_its_ports_and_probes_say(overlay: str, pod: Pod) -> None:
    config = settings(pod, rendered(overlay))
    section = own(config, pod)
    check_listen("listen", section.listen, config.security)
    serving = {"grpc": section.listen}
    if pod.component in SERVERS:
        # The others serve nothing but their health, in plain text.
        serving["health"] = section.health_listen
    streams = {"streams": section.stream_port} if pod.component in SERVERS else {}
    assert pod.ports == {
        **{name: split(address)[1] for name, address in serving.items()},
        **streams,
        "metrics": section.metrics_port,
    }
    assert {split(address)[0] for address in serving.values()} | {config.telemetry.metrics_host} == {"0.0.0.0"}
    probes = [pod.container[kind] for kind in ("startupProbe", "readinessProbe", "livenessProbe")]
    # The kubelet can't use TLS.
    assert [probe["grpc"] for probe in probes] == [{"port": pod.ports[[*serving][-1]]}] * 3


@for_each(("overlay", "pod"), SERVICES)
def test_a_hung_service_is_restarted_but_not_one_that_starts(overlay: str, pod: Pod) -> None:
    startup, liveness = pod.container["startupProbe"], pod.container["livenessProbe"]
    # A large store takes minutes to open, and an environment to be made.
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600
    # Longer than a full disk, a page fault or a collection of garbage stalls a service.
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 120
    assert liveness["timeoutSeconds"] >= 10


@for_each("overlay", overlays())
def test_every_service_has_pods_that_open_its_ports(overlay: str) -> None:
    objects = rendered(overlay)
    for service in of_kind(objects, "Service"):
        assert service["spec"]["clusterIP"] == "None"
        selected = resolved(service["metadata"]["name"], objects)
        assert selected, service["metadata"]["name"]
        for pod in selected:
            for port in service["spec"]["ports"]:
                assert port.get("targetPort", port["port"]) == pod.ports[port["name"]]


@for_each("overlay", overlays())
def test_selectors_select_something(overlay: str) -> None:
    objects = rendered(overlay)
    everyone = pods(objects)
    for policy in of_kind(objects, "NetworkPolicy"):
        assert any(matches(policy["spec"]["podSelector"], pod.labels) for pod in everyone)
        inner = [
            peer["podSelector"]
            for key, peers in (("ingress", "from"), ("egress", "to"))
            for rule in policy["spec"].get(key, ())
            for peer in rule.get(peers, ())
            if "namespaceSelector" not in peer
        ]
        for selector in inner:
            assert any(matches(selector, pod.labels) for pod in everyone)
            for expression in selector.get("matchExpressions", ()):
                assert set(expression["values"]) <= {pod.component for pod in everyone}
    for workload in of_kind(objects, "StatefulSet", "Deployment"):
        assert matches(workload["spec"]["selector"], workload["spec"]["template"]["metadata"]["labels"])
        if "serviceName" in workload["spec"]:
            named(objects, "Service", workload["spec"]["serviceName"])
    for monitor in of_kind(objects, "ServiceMonitor"):
        label, endpoints = monitor["spec"]["jobLabel"], monitor["spec"]["endpoints"]
        selected = [
            service
            for service in of_kind(objects, "Service")
            if matches(monitor["spec"]["selector"], service["metadata"]["labels"])
        ]
        scrapes = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
        assert {each["metadata"]["labels"][label] for each in selected} == {
            each["job_name"] for each in scrapes if "dns_sd_configs" in each
        }
        for each in selected:
            assert {endpoint["port"] for endpoint in endpoints} <= {port["name"] for port in each["spec"]["ports"]}


@for_each(("overlay", "pod"), SERVICES)
def test_services_find_each_other_where_they_listen(overlay: str, pod: Pod) -> None:
    objects = rendered(overlay)
    config = settings(pod, objects)
    listening = {each.component: each.ports.get("grpc") for each in pods(objects)}
    assert config.learner.advertise == config.actor.learner_address == config.evaluation.learner_address
    named_by = dict.fromkeys(config.learner.advertise, "learner")
    named_by |= dict.fromkeys(config.learner.replay_addresses, "replay")
    for address, component in named_by.items():
        host, port = split(address)
        found = resolved(host, objects)
        assert [each.component for each in found] == [component]
        assert port == listening[component]
    if pod.component == "replay":
        assert list(config.replay.advertise) == [config.learner.replay_addresses[0]]


@for_each("overlay", overlays())
def test_a_peer_is_found_before_it_is_ready(overlay: str) -> None:
    objects = rendered(overlay)
    for name in ("penstock-replay", "penstock-learner"):
        assert named(objects, "Service", name)["spec"]["publishNotReadyAddresses"]


@for_each("overlay", overlays())
def test_policies_let_the_connections_of_a_run_pass_and_no_others(overlay: str) -> None:
    objects = rendered(overlay)
    everyone = pods(objects)
    for source in everyone:
        for target in everyone:
            for name, port in target.ports.items():
                if source.workload == target.workload:
                    continue
                expected = (source.component, target.component, name) in CONNECTIONS
                # Ranks meet at ports of their own choice.
                expected |= {source.component, target.component} == {"learner", "rank"}
                assert allowed(source, target, port, objects) is expected, f"{source} to {name} of {target}"


@for_each("overlay", overlays())
def test_prometheus_alone_reaches_the_metrics_from_outside(overlay: str) -> None:
    objects = rendered(overlay)
    opened: list[int] = []
    for policy in of_kind(objects, "NetworkPolicy"):
        for rule in policy["spec"].get("ingress", ()):
            for peer in rule["from"]:
                if "namespaceSelector" in peer:
                    assert peer["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "prometheus"}
                    [ports] = rule["ports"]
                    opened += range(ports["port"], ports["endPort"] + 1)
    assert opened == sorted({pod.ports["metrics"] for pod in pods(objects) if "metrics" in pod.ports})


@for_each("overlay", overlays())
def test_every_pod_can_ask_dns(overlay: str) -> None:
    rules = [
        rule
        for policy in of_kind(rendered(overlay), "NetworkPolicy")
        for rule in policy["spec"].get("egress", ())
        if "to" not in rule
    ]
    assert [sorted((port["protocol"], port["port"]) for port in rule["ports"]) for rule in rules] == [
        [("TCP", 53), ("UDP", 53)]
    ]


@for_each(("overlay", "pod"), EACH_POD)
def test_mounts_have_volumes_and_volumes_have_claims(overlay: str, pod: Pod) -> None:
    objects = rendered(overlay)
    mounts = {mount["name"]: mount for mount in pod.container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod.spec["volumes"]} | dict(pod.claims)
    assert mounts.keys() == volumes.keys()
    for volume in pod.spec["volumes"]:
        if "persistentVolumeClaim" in volume:
            named(objects, "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
    # The root file system is read-only.
    assert mounts["tmp"]["mountPath"] == "/tmp" and "emptyDir" in volumes["tmp"]


@for_each(("overlay", "pod"), SERVICES)
def test_what_must_survive_is_in_a_claim(overlay: str, pod: Pod) -> None:
    objects = rendered(overlay)
    config = settings(pod, objects)
    folder = {"replay": config.replay.folder, "learner": config.run.dir}.get(pod.component)
    kept = [
        mount["mountPath"]
        for mount in pod.container["volumeMounts"]
        if mount["name"] not in ("tmp", "certificate", "compiled")
    ]
    if folder is None:
        # An actor may be anywhere, and killed at any time.
        assert not kept
        return
    [path] = kept
    assert str(folder) == f"{path}/{environment(pod, objects)['PENSTOCK_RUN']}"


@for_each(("overlay", "pod"), params("replay"))
def test_the_store_fits_into_memory_and_volume(overlay: str, pod: Pod) -> None:
    objects = rendered(overlay)
    store = settings(pod, objects).replay.store_size
    assert store.unit == "bytes"
    # The pages of the mapped store count.
    assert size(pod.container["resources"]["requests"]["memory"]) >= store.amount + SPARE_BYTES
    claims = [*pod.claims.values()] or [
        named(objects, "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
        for volume in pod.spec["volumes"]
        if "persistentVolumeClaim" in volume
    ]
    [claim] = claims
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    # A store beside the snapshots that are kept, and the one that is being taken.
    snapshots = settings(pod, objects).replay.snapshots_kept + 1
    assert size(claim["spec"]["resources"]["requests"]["storage"]) >= store.amount * (1 + snapshots)


@for_each(("overlay", "pod"), EACH_POD)
def test_pods_are_confined(overlay: str, pod: Pod) -> None:
    context, container = pod.spec["securityContext"], pod.container["securityContext"]
    assert (context["runAsNonRoot"], context["runAsUser"], context["fsGroup"]) == (True, 10001, 10001)
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not pod.spec["automountServiceAccountToken"] and not pod.spec["enableServiceLinks"]
    assert not any(pod.spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC"))
    resources = pod.container["resources"]
    assert size(resources["requests"]["memory"]) <= size(resources["limits"]["memory"])
    # A limit would slow down the process within each tenth of a second.
    assert resources["requests"]["cpu"] and "cpu" not in resources["limits"]


@for_each(("overlay", "pod"), SERVICES)
def test_only_actors_use_capacity_that_may_be_taken_away(overlay: str, pod: Pod) -> None:
    objects = rendered(overlay)
    affinity = pod.spec["affinity"]["nodeAffinity"]
    [actor] = [each for each in pods(objects) if each.component == "actor"]
    preferred = {
        expression["key"]: tuple(expression["values"])
        for term in actor.spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        for expression in term["preference"]["matchExpressions"]
    }
    if pod.component == "actor":
        assert {each["key"] for each in pod.spec["tolerations"]} <= preferred.keys()
        assert "requiredDuringSchedulingIgnoredDuringExecution" not in affinity
        return
    [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {each["operator"] for each in term["matchExpressions"]} == {"NotIn"}
    assert {each["key"]: tuple(each["values"]) for each in term["matchExpressions"]} == preferred
    assert {each["key"] for each in pod.spec.get("tolerations", ())} <= {"nvidia.com/gpu"}


@for_each("overlay", overlays())
def test_no_budget_blocks_the_drain_of_a_node(overlay: str) -> None:
    assert not of_kind(rendered(overlay), "PodDisruptionBudget")


@for_each("overlay", overlays())
def test_actors_are_replaced_before_they_stop_and_any_number_may_stop(overlay: str) -> None:
    deployment = named(rendered(overlay), "Deployment", "penstock-actor")["spec"]
    surge, unavailable = (
        int(deployment["strategy"]["rollingUpdate"][key].rstrip("%")) for key in ("maxSurge", "maxUnavailable")
    )
    # Kubernetes rounds the first up and the second down.
    assert surge > 0 and 2 * unavailable // 100 == 0 and 64 * unavailable // 100 > 0


@for_each("overlay", [each for each in overlays() if each not in RANKS])
def test_a_learner_is_restarted_unless_that_does_not_help(overlay: str) -> None:
    job = named(rendered(overlay), "Job", "penstock-learner")["spec"]
    # Two learners never run at once.
    assert (job["podReplacementPolicy"], job["template"]["spec"]["restartPolicy"]) == ("Failed", "Never")
    disrupted, hopeless = job["podFailurePolicy"]["rules"]
    assert (disrupted["action"], disrupted["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert hopeless["action"] == "FailJob"
    assert hopeless["onExitCodes"] == {
        "containerName": CONTAINER,
        "operator": "In",
        "values": [USAGE_ERROR, GAVE_UP],
    }


@for_each("overlay", ENDING)
def test_the_job_that_ends_the_run_may_do_what_it_does(overlay: str) -> None:
    objects = rendered(overlay)
    job, role = named(objects, "Job", "penstock-end")["spec"], named(objects, "Role", "penstock-end")
    binding = named(objects, "RoleBinding", "penstock-end")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [each["name"] for each in binding["subjects"]] == [job["template"]["spec"]["serviceAccountName"]]
    assert job["template"]["spec"]["automountServiceAccountToken"]
    [wait], [scale] = job["template"]["spec"]["initContainers"], job["template"]["spec"]["containers"]
    granted = {
        (resource, name): set(rule["verbs"])
        for rule in role["rules"]
        for resource in rule["resources"]
        for name in rule["resourceNames"]
    }
    waited = [each.partition("/")[::2] for each in wait["args"] if "/" in each]
    scaled = [each.partition("/")[::2] for each in scale["args"] if "/" in each]
    assert waited == [("job", "penstock-learner")] and scaled
    needed = {(f"{kind}s", name): {"get", "list", "watch"} for kind, name in waited}
    for kind, name in scaled:
        needed |= {(f"{kind}s", name): {"get"}, (f"{kind}s/scale", name): {"get", "update", "patch"}}
    assert granted == needed
    for kind, name in [*waited, *scaled]:
        named(objects, kind.capitalize(), name)
    # Nothing but the API is open to it, and policies of the run do not hold it.
    assert job["template"]["metadata"]["labels"] == {"app.kubernetes.io/name": "penstock-end"}


@for_each(("overlay", "pod"), params("learner"))
def test_the_learner_expects_the_actors_of_the_manifest(overlay: str, pod: Pod) -> None:
    objects = rendered(overlay)
    replicas = named(objects, "Deployment", "penstock-actor")["spec"].get("replicas", "wanted")
    assert settings(pod, objects).learner.expected_actors == replicas


@for_each(("overlay", "pod"), SERVICES)
def test_the_command_of_a_pod_is_its_service(overlay: str, pod: Pod) -> None:
    assert pod.component in arguments(pod, rendered(overlay))


@for_each("overlay", overlays())
def test_kubectl_can_store_every_object(overlay: str) -> None:
    for each in rendered(overlay):
        # `kubectl apply` keeps the object in one of its annotations.
        assert len(json.dumps(each)) < 262_144, each["metadata"]["name"]


@for_each("overlay", overlays())
def test_deleting_the_workloads_keeps_the_run(overlay: str) -> None:
    objects = rendered(overlay)
    claims = {claim["metadata"]["name"] for claim in of_kind(objects, "PersistentVolumeClaim")}
    assert "penstock-runs" in claims
    for each in objects:
        assert (
            each["metadata"].get("labels", {}).get("app.kubernetes.io/name") == "penstock"
            or each["kind"] == "ConfigMap"
        )
        # A namespace of the manifests would be deleted with all volumes.
        assert each["kind"] != "Namespace" and "namespace" not in each["metadata"]


# Components that only the example has


def quota_of(objects: list[Any]) -> Any:
    [quota] = of_kind(objects, "ResourceQuota")
    return quota["spec"]["hard"]


def test_the_example_fits_into_its_quota_while_actors_are_replaced() -> None:
    objects = rendered(str(EXAMPLE.relative_to(ROOT)))
    hard, [limits] = quota_of(objects), of_kind(objects, "LimitRange")
    [most] = [each["max"]["memory"] for each in limits["spec"]["limits"] if each["type"] == "Container"]
    used = {"pods": 0.0, "requests.cpu": 0.0, "requests.memory": 0.0, "limits.memory": 0.0}
    for pod in pods(objects):
        kind, name = pod.workload.split("/")
        # A quarter more actors run during an update, and tools while someone uses them.
        number = max(1, named(objects, kind, name)["spec"].get("replicas", 1)) * (
            1.25 if name == "penstock-actor" else 1
        )
        resources = pod.container["resources"]
        assert size(resources["limits"]["memory"]) <= size(most)
        used["pods"] += number
        used["requests.cpu"] += number * cores(resources["requests"]["cpu"])
        used["requests.memory"] += number * size(resources["requests"]["memory"])
        used["limits.memory"] += number * size(resources["limits"]["memory"])
    # Jobs besides the run: certificates, the end and the copies.
    spare = {"pods": 4, "requests.cpu": 0.5, "requests.memory": 2**30, "limits.memory": 4 * 2**30}
    for name, amount in used.items():
        allowed_amount = size(hard[name]) if "memory" in name else cores(hard[name])
        assert amount + spare[name] <= allowed_amount, name
    # The run's pods have no limit of cores.
    assert not any("limits.cpu" in key or key == "cpu" for key in hard)
    claims = [
        *of_kind(objects, "PersistentVolumeClaim"),
        *(claim for pod in pods(objects) for claim in pod.claims.values()),
    ]
    assert len(claims) <= int(hard["persistentvolumeclaims"])
    sizes = [size(claim["spec"]["resources"]["requests"]["storage"]) for claim in claims]
    assert sum(sizes) <= size(hard["requests.storage"])
    [largest] = [each["max"]["storage"] for each in limits["spec"]["limits"] if each["type"] == "PersistentVolumeClaim"]
    assert max(sizes) <= size(largest)


def cores(text: str) -> float:
    return float(text.removesuffix("m")) / 1000.0 if text.endswith("m") else float(text)


COPIES = {
    each["metadata"]["name"]: each["spec"]["jobTemplate"]["spec"]["template"]
    for each in of_kind(rendered(str(EXAMPLE.relative_to(ROOT))), "CronJob")
    if each["metadata"]["name"].startswith("penstock-copy-")
}


@for_each(("job", "beside"), [("penstock-copy-store", "replay"), ("penstock-copy-run", "learner")])
def test_a_copy_runs_where_its_volume_can_be_mounted_as_confined_as_the_service(job: str, beside: str) -> None:
    objects = rendered(str(EXAMPLE.relative_to(ROOT)))
    template, [service] = COPIES[job], [pod for pod in pods(objects) if pod.component == beside]
    copying = Pod(f"CronJob/{job}", job, (), template["metadata"]["labels"], {}, template["spec"], {})
    [near] = copying.spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert near["topologyKey"] == "kubernetes.io/hostname" and matches(near["labelSelector"], service.labels)
    assert copying.spec["securityContext"] == service.spec["securityContext"]
    assert copying.container["securityContext"] == service.container["securityContext"]
    assert copying.container["image"].startswith("registry.example.com/team/penstock-actor:")
    places = {mount["name"]: mount["mountPath"] for mount in copying.container["volumeMounts"]}
    assert places.keys() == {volume["name"] for volume in copying.spec["volumes"]}
    known = {claim["metadata"]["name"] for claim in of_kind(objects, "PersistentVolumeClaim")}
    known |= {f"{name}-{pod.name}" for pod in pods(objects) for name in pod.claims}
    claimed = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in copying.spec["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert claimed <= known and "penstock-copies" in claimed
    # It needs what the service writes at the same path, and its settings.
    written = {mount["mountPath"] for mount in service.container["volumeMounts"]} & set(places.values())
    assert written - {"/tmp", "/etc/penstock"}
    assert environment(copying, objects)["PENSTOCK_RUN"] == environment(service, objects)["PENSTOCK_RUN"]
    learner = next(pod for pod in pods(objects) if pod.component == "learner")
    assert allowed(copying, learner, learner.ports["grpc"], objects)


@pytest.mark.parametrize("job", COPIES)
def test_seven_copies_are_kept_and_a_failed_one_is_no_copy(job: str, tmp_path: Path) -> None:
    [container] = COPIES[job]["spec"]["containers"]
    *shell, script = container["command"]
    data = tmp_path / "data"
    (data / "runs" / "first").mkdir(parents=True)
    (data / "runs" / "first" / "versions.json").write_text("{}")
    (data / "runs" / "first" / "certificates").mkdir()
    copies = data / "copies" / "first"
    copies.mkdir(parents=True)
    kind = job.rpartition("-")[2]
    for day in range(1, 10):
        (copies / f"{kind}-nightly-2001-01-0{day}-02-23.tar").write_text("a copy")
    snapshots = data / "replay" / "first" / "snapshots"
    snapshots.mkdir(parents=True)
    program = tmp_path / "penstock"
    # The replay service, which writes the snapshot.
    program.write_text(
        f'#!/bin/sh\n[ "$1 $2" = "replay snapshot" ] && mkdir "{snapshots}/$3" && echo x > "{snapshots}/$3/rows"\n'
    )
    program.chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PENSTOCK_RUN": "first"}

    def copied() -> int:
        command = [*shell, script.replace("/var/lib/penstock", str(data))]
        return subprocess.run(command, env=variables, timeout=PATIENCE_S, capture_output=True).returncode

    assert copied() == 0
    kept = sorted(path.name for path in copies.iterdir())
    assert (
        len(kept) == 7 and kept[0].endswith("2001-01-04-02-23.tar") and not kept[-1].startswith(f"{kind}-nightly-2001")
    )
    with tarfile.open(copies / kept[-1]) as archive:
        names = archive.getnames()
    assert any(name.endswith("rows" if kind == "store" else "versions.json") for name in names)
    assert not any("certificates" in name for name in names)
    # The snapshot's room is free again.
    assert not any(snapshots.iterdir())
    shutil.rmtree(data / "runs")
    program.write_text("#!/bin/sh\nexit 3\n")
    (copies / kept[-1]).unlink()
    assert copied() != 0
    assert sorted(path.name for path in copies.glob("*.tar")) == kept[:-1]
