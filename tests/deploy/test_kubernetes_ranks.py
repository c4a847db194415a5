"""deploy/kubernetes/jobset: the ranks of a learner, and the services that end with it."""

from penstock.learning.ranks.group import place_of
from tests.deploy.manifests import allowed, arguments, environment, of_kind, overlays, pods, rendered, resolved
from tests.rules import for_each

RANKS = [each for each in overlays() if of_kind(rendered(each), "JobSet")]


@for_each("overlay", RANKS)
def test_every_rank_has_its_number_and_finds_the_first(overlay: str) -> None:
    objects = rendered(overlay)
    ranks = [pod for pod in pods(objects) if pod.component in ("learner", "rank")]
    variables = [environment(pod, objects) for pod in ranks]
    places = [place_of(each) for each in variables]
    assert [place.rank for place in places] == list(range(places[0].count))
    assert {each["MASTER_ADDR"] for each in variables} == set(ranks[0].hostnames)
    assert resolved(variables[0]["MASTER_ADDR"], objects) == [ranks[0]]
    for pod in ranks[1:]:
        # It serves nobody and needs no folder. Like every learner, it refuses to start without a certificate.
        assert arguments(pod, objects) == ["learner"] and not pod.ports
        assert [volume["name"] for volume in pod.spec["volumes"]] == ["tmp", "certificate", "compiled"]
        assert not any(key.endswith("Probe") for key in pod.container)
        assert pod.container["resources"] == ranks[0].container["resources"]
        assert all(allowed(pod, ranks[0], port, objects) for port in (29500, 40000))


@for_each("overlay", RANKS)
def test_services_end_with_the_learner_and_actors_are_outside_the_set(overlay: str) -> None:
    objects = rendered(overlay)
    [jobset] = of_kind(objects, "JobSet")
    assert jobset["spec"]["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["learner"]}
    inside = {pod.component for pod in pods([jobset])}
    assert {pod.component for pod in pods(objects)} - inside == {"actor", "tools"}
    for job in jobset["spec"]["replicatedJobs"]:
        spec = job["template"]["spec"]
        assert (spec["podReplacementPolicy"], spec["template"]["spec"]["restartPolicy"]) == ("Failed", "Never")
