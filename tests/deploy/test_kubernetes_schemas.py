"""deploy/kubernetes: every object is strictly valid, for each supported release of Kubernetes."""

import runpy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import utils

from tests.deploy.manifests import FOLDER, Object, overlays, rendered
from tests.rules import for_each

SCHEMAS = {file.stem: yaml.safe_load(file.read_text()) for file in (Path(__file__).parent / "schemas").glob("*.yaml")}
"""Definitions of the kinds that are not Kubernetes' own."""

OLDEST = (1, 31)
RELEASES = [release for release in utils.all_versions() if tuple(map(int, release.split("."))) >= OLDEST]


FREE = {"labels", "matchLabels", "selector", "requests", "limits", "annotations", "metadata"}
FREE |= {"hard", "max", "default", "defaultRequest"}  # Amounts by resource, of a ResourceQuota and a LimitRange.


@pytest.fixture(scope="module", autouse=True)
def schemas_in_memory() -> Iterator[None]:
    """Keeps the validator's schemas, which it would read again for each object."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", cache(utils.schema_contents))
        yield


def validate(each: Object, release: str) -> None:
    """Raises a `jsonschema.ValidationError` if a field is unknown, missing or of another type."""
    if each["kind"] not in SCHEMAS:
        kubernetes_validate.validate(each, release, strict=True)
        return
    jsonschema.validate(each, SCHEMAS[each["kind"]])
    if each["kind"] == "JobSet":
        for job in each["spec"]["replicatedJobs"]:
            as_job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, **job["template"]}
            kubernetes_validate.validate(as_job, release, strict=True)


def test_the_validator_knows_the_oldest_supported_release_and_newer_ones() -> None:
    assert RELEASES[0].startswith("1.31") and len(RELEASES) >= 7


@for_each("release", RELEASES)
@for_each("overlay", overlays())
def test_every_object_is_strictly_valid(overlay: str, release: str) -> None:
    objects = rendered(overlay)
    assert objects
    for each in objects:
        validate(each, release)


def mappings(value: Any, key: str = "") -> Iterator[dict[str, Any]]:
    """Yields the mappings in a specification whose names are not of the user's choice."""
    if isinstance(value, dict):
        if key not in FREE:
            yield value
        for name, inner in list(value.items()):
            yield from mappings(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from mappings(inner)


@for_each("overlay", overlays())
def test_an_unknown_field_anywhere_is_refused(overlay: str) -> None:
    for each in rendered(overlay):
        for mapping in mappings(each.get("spec")):
            mapping["misspelt"] = "x"
            with pytest.raises(jsonschema.ValidationError):
                validate(each, RELEASES[0])
            del mapping["misspelt"]


def test_the_generated_rules_are_current() -> None:
    module = runpy.run_path(str(FOLDER / "rules.py"))
    assert module["FILE"].read_text() == module["render"](), "run `make kubernetes-rules`"
