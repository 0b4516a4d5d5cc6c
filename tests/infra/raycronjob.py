"""Faults of the RayCronJob that may stand in place of the CronJob: it runs what the RayJob of infra/k8s runs."""

from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.infra.manifests import Manifests

FIELDS = {"schedule", "timeZone", "suspend", "jobTemplate"}
"""Fields of a RayCronJob's `spec`, as of KubeRay 1.7."""

DATE, YESTERDAY = "--date DATE", "--date yesterday"


def raycronjob_problems(infra: Path) -> Iterator[str]:
    found, folder = Manifests(infra), infra / "k8s-raycronjob"
    cron = yaml.safe_load((folder / "raycronjob.yaml").read_text())
    if (cron["apiVersion"], cron["kind"]) != ("ray.io/v1", "RayCronJob"):
        yield "RayCronJob is of ray.io/v1"
    yield from (f"RayCronJob: unknown field {name}" for name in cron["spec"].keys() - FIELDS)
    nightly = found.one("CronJob")["spec"]
    yield from (
        f"RayCronJob: {name} is not the CronJob's"
        for name in ("schedule", "timeZone")
        if cron["spec"].get(name) != nightly[name]
    )
    job = found.one("RayJob")["spec"]
    job["entrypoint"] = job["entrypoint"].replace(DATE, YESTERDAY)
    template = cron["spec"]["jobTemplate"]
    differ = [name for name in sorted(job.keys() | template.keys()) if job.get(name) != template.get(name)]
    yield from (f"RayCronJob: {name} differs from rayjob.yaml" for name in differ)

    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    for resource in kustomization["resources"]:
        if not (folder / resource).exists():
            yield f"k8s-raycronjob: {resource} does not exist"
    gone = [yaml.safe_load(patch["patch"]) for patch in kustomization["patches"]]
    known = {
        (one["apiVersion"], one["kind"], one["metadata"]["name"])
        for one in found.documents
        if "metadata" in one and "name" in one["metadata"]
    }
    for one in gone:
        what = (one["apiVersion"], one["kind"], one["metadata"]["name"])
        if one.get("$patch") != "delete" or what not in known:
            yield f"k8s-raycronjob: deletes {' '.join(what)}, which infra/k8s does not make"
    if "CronJob" not in {one["kind"] for one in gone}:
        yield "k8s-raycronjob: two triggers would start each night"
