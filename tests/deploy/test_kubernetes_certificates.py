"""deploy/kubernetes: each pod has the certificate of its role, and a job makes the Secrets that hold them."""

import base64
from pathlib import Path, PurePath
from typing import Any

import pytest

from penstock.cli.commands.certificates import command
from penstock.security.certificate import stated
from penstock.security.pem_files import certificates
from penstock.security.roles import ROLES, Identity
from tests.deploy.manifests import CONTAINER, Object, Pod, named, of_kind, overlays, pods, rendered, rendered_folder
from tests.deploy.manifests import environment as variables_of
from tests.rules import for_each

ROLE_OF = {"rank": "learner", "tools": "operator"}
"""Roles of the pods whose component is none."""

AUTHORITY = "penstock-authority"
NAME = "penstock-certificates"
MAKING = [each for each in overlays() if each != "deploy/kubernetes/base"]
"""Folders with the job; the base has what all others are made of."""

EACH_POD = [
    pytest.param(overlay, pod, id=f"{overlay}: {pod}") for overlay in overlays() for pod in pods(rendered(overlay))
]


def job_of(overlay: str) -> Any:
    return named(rendered(overlay), "Job", NAME)["spec"]


def secret_names(spec: Object) -> set[str]:
    return {volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume}


def mounted(container: Object, volumes: list[Object], kind: str) -> list[PurePath]:
    names = [volume["name"] for volume in volumes if kind in volume]
    return [PurePath(each["mountPath"]) for each in container["volumeMounts"] if each["name"] in names]


@for_each(("overlay", "pod"), EACH_POD)
def test_a_pod_has_the_certificate_of_its_role_and_no_other(overlay: str, pod: Pod) -> None:
    role = ROLE_OF.get(pod.component, pod.component)
    secrets = [volume["secret"] for volume in pod.spec["volumes"] if "secret" in volume]
    # Of root, and readable by the group of the pod, which the service's own check admits.
    assert secrets == [{"secretName": f"penstock-certificate-{role}", "defaultMode": 0o440}]
    assert pod.spec["securityContext"]["fsGroup"] == pod.spec["securityContext"]["runAsGroup"]
    [mount] = [each for each in pod.container["volumeMounts"] if each["name"] == "certificate"]
    # With `subPath`, renewed files would not arrive.
    assert mount == {"name": "certificate", "mountPath": "/etc/penstock", "readOnly": True}
    variables = variables_of(pod, rendered(overlay))
    assert PurePath(variables["PENSTOCK__SECURITY__CERTIFICATE"]).parent == PurePath(mount["mountPath"])
    assert "PENSTOCK__SECURITY__INSECURE" not in variables


@pytest.mark.parametrize("overlay", MAKING)
def test_the_job_makes_the_secrets_that_pods_mount(overlay: str, tmp_path: Path) -> None:
    objects, spec = rendered(overlay), job_of(overlay)["template"]["spec"]
    [source] = [volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume]
    for name, text in named(objects, "ConfigMap", source)["data"].items():
        (tmp_path / name).write_text(text)
    assert command([str(tmp_path)]) == 0
    made = {each["metadata"]["name"]: each for each in rendered_folder(tmp_path)}
    assert {each["kind"] for each in made.values()} == {"Secret"}
    assert made.keys() == {AUTHORITY} | {f"penstock-certificate-{role}" for role in ROLES}
    used = {name for pod in pods(objects) for name in secret_names(pod.spec)}
    assert used | {AUTHORITY} == made.keys()
    assert made[AUTHORITY]["data"].keys() == {"authority.pem", "authority-key.pem"}
    for role in ROLES:
        data = made[f"penstock-certificate-{role}"]["data"]
        assert data.keys() == {"certificate.pem", "key.pem", "authority.pem"}
        place = Path("certificate.pem")
        [leaf] = certificates(base64.b64decode(data[place.name]), place)
        identity, _ = stated(leaf, place)
        assert identity == Identity(identity.run, role)


@for_each("overlay", MAKING)
def test_the_job_may_do_what_it_does(overlay: str) -> None:
    objects, template = rendered(overlay), job_of(overlay)["template"]
    role, binding = named(objects, "Role", NAME), named(objects, "RoleBinding", NAME)
    assert binding["roleRef"]["name"] == NAME == template["spec"]["serviceAccountName"]
    assert [each["name"] for each in binding["subjects"]] == [NAME]
    assert template["spec"]["automountServiceAccountToken"]
    by_name, creating = role["rules"]
    assert {*by_name["resourceNames"]} == {AUTHORITY} | {f"penstock-certificate-{role}" for role in ROLES}
    assert (by_name["resources"], by_name["verbs"]) == (["secrets"], ["get", "patch"])
    assert (creating["resources"], creating["verbs"]) == (["secrets"], ["create"])
    # Nothing but the API is open to it, and policies of the run do not hold it.
    assert template["metadata"]["labels"] == {"app.kubernetes.io/name": NAME}


@for_each("overlay", MAKING)
def test_the_job_keeps_the_authority_and_stores_what_it_made(overlay: str) -> None:
    spec = job_of(overlay)["template"]["spec"]
    # There is none at the first start.
    assert [volume["secret"] for volume in spec["volumes"] if "secret" in volume] == [
        {"secretName": AUTHORITY, "defaultMode": 0o440, "optional": True}
    ]
    [make], [store] = spec["initContainers"], spec["containers"]
    [folder] = mounted(make, spec["volumes"], "emptyDir")
    assert mounted(store, spec["volumes"], "emptyDir") == [folder]
    assert f"--kustomize={folder}" in store["args"] and f"penstock certificates {folder} " in make["command"][-1]
    for kind in ("secret", "configMap"):
        [place] = mounted(make, spec["volumes"], kind)
        assert f"{place}/" in make["command"][-1]
        assert not mounted(store, spec["volumes"], kind)


@for_each("overlay", MAKING)
def test_certificates_are_renewed_by_the_same_job_with_the_image_of_the_actors(overlay: str) -> None:
    objects, job = rendered(overlay), job_of(overlay)
    assert named(objects, "CronJob", NAME)["spec"]["jobTemplate"]["spec"] == job
    actor = named(objects, "Deployment", "penstock-actor")["spec"]["template"]["spec"]["containers"]
    [image] = [each["image"] for each in actor if each["name"] == CONTAINER]
    assert [each["image"] for each in job["template"]["spec"]["initContainers"]] == [image]
    # A job that stays could not be changed by the next `kubectl apply`.
    assert job["ttlSecondsAfterFinished"] <= 86_400


@for_each("overlay", MAKING)
def test_jobs_that_use_the_api_are_confined_like_the_pods_of_the_run(overlay: str) -> None:
    own = [each["spec"]["template"]["spec"] for each in of_kind(rendered(overlay), "Job")]
    for spec in (each for each in own if "serviceAccountName" in each):
        context = spec["securityContext"]
        assert (context["runAsNonRoot"], context["runAsUser"]) == (True, 10001)
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*spec["initContainers"], *spec["containers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
