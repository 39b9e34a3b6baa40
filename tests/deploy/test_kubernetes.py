"""The Kubernetes manifests: valid, not root, probed, and stopped no sooner than their jobs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from tests.deploy.files import KUBERNETES, ROOT, WORKER_STOP_SECONDS, documents

EXAMPLE: Final = KUBERNETES / "overlays" / "example"
PROMISED: Final = (ROOT / "tests/promises/metrics.txt").read_text()


def resolved(folder: Path) -> list[dict[str, Any]]:
    """The objects of a kustomization and of all that it names, before its patches."""
    content = documents(folder / "kustomization.yaml")[0]
    found: list[dict[str, Any]] = []
    for name in [*content.get("resources", []), *content.get("components", [])]:
        path = (folder / name).resolve()
        found += resolved(path) if path.is_dir() else documents(path)
    return found


OBJECTS: Final = resolved(EXAMPLE)
DEPLOYMENTS: Final = {one["metadata"]["name"]: one for one in OBJECTS if one["kind"] == "Deployment"}
every_deployment = pytest.mark.parametrize("name", ["everwork-server", "everwork-workers"])


def pod(name: str) -> dict[str, Any]:
    found: dict[str, Any] = DEPLOYMENTS[name]["spec"]["template"]["spec"]
    return found


def container(name: str) -> dict[str, Any]:
    [found] = pod(name)["containers"]
    assert isinstance(found, dict)
    return found


def test_every_object_follows_the_schema_of_kubernetes() -> None:
    known = [one for one in OBJECTS if not one["apiVersion"].startswith("keda.sh/")]
    for one in known:
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    assert len(known) == len(OBJECTS) - 1


def test_kustomize_makes_the_same_objects() -> None:
    """With kubectl, where there is one; what it patches is checked, too."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        return
    done = subprocess.run([kubectl, "kustomize", EXAMPLE], capture_output=True, text=True, timeout=60, check=True)
    made = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(done.stdout)}
    assert made.keys() == {(one["kind"], one["metadata"]["name"]) for one in OBJECTS}
    assert all(one["metadata"]["namespace"] == "jobs" for one in made.values())
    assert "replicas" not in made["Deployment", "everwork-workers"]["spec"]
    for one in made.values():
        if not one["apiVersion"].startswith("keda.sh/"):
            kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)


@every_deployment
def test_pods_run_without_root_privileges_or_a_token(name: str) -> None:
    assert pod(name)["securityContext"]["runAsNonRoot"] is True
    assert pod(name)["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod(name)["automountServiceAccountToken"] is False
    assert container(name)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"cpu", "memory"} <= container(name)["resources"]["requests"].keys()
    assert "memory" in container(name)["resources"]["limits"]


@every_deployment
def test_secrets_are_references_only(name: str) -> None:
    for variable in container(name)["env"]:
        if variable["name"] not in ("EVERWORK_LOG_FORMAT", "EVERWORK_INSECURE"):
            assert variable["valueFrom"]["secretKeyRef"]["name"] == "everwork"
    assert [one for one in OBJECTS if one["kind"] == "Secret"] == []


def test_a_server_is_restarted_if_it_does_not_answer_and_spared_while_the_engine_is_away() -> None:
    probes = container("everwork-server")
    assert probes["livenessProbe"]["httpGet"]["path"] == probes["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert probes["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_workers_are_probed_by_their_manager_and_never_killed_for_an_engine_that_is_away() -> None:
    assert container("everwork-workers")["readinessProbe"]["exec"]["command"][:2] == ["everwork", "probe"]
    assert "livenessProbe" not in container("everwork-workers")


def test_running_jobs_get_the_time_that_the_documentation_says() -> None:
    assert pod("everwork-workers")["terminationGracePeriodSeconds"] == WORKER_STOP_SECONDS


@every_deployment
def test_a_drained_node_leaves_some_running(name: str) -> None:
    [budget] = [one for one in OBJECTS if one["kind"] == "PodDisruptionBudget" and one["metadata"]["name"] == name]
    assert budget["spec"]["selector"] == DEPLOYMENTS[name]["spec"]["selector"]
    assert DEPLOYMENTS[name]["spec"]["replicas"] >= 2


def test_keda_scales_the_workers_by_metrics_that_exist() -> None:
    [scaled] = [one for one in OBJECTS if one["kind"] == "ScaledObject"]
    assert scaled["spec"]["scaleTargetRef"]["name"] in DEPLOYMENTS
    queries = [one["metadata"]["query"] for one in scaled["spec"]["triggers"]]
    assert queries == [
        'max(everwork_oldest_waiting_seconds{type="email-send"})',
        'max(everwork_jobs{type="email-send", state="processing"})',
    ]
    assert "everwork_oldest_waiting_seconds{type}" in PROMISED
    assert "everwork_jobs{state, type}" in PROMISED
