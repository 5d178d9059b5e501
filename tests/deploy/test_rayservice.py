"""KubeRay's manifest: its pods meet the schemas of Kubernetes, its application can be built. Not run in a cluster."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
import yaml

from agent_tts.cluster.kept_node import FIRST_PORT
from tests.deploy.test_containers import ROOT

SERVICE, FRONT = yaml.safe_load_all((ROOT / "configs" / "kubernetes" / "ray" / "rayservice.yaml").read_text())
CLUSTER = SERVICE["spec"]["rayClusterConfig"]
(WORKERS,) = CLUSTER["workerGroupSpecs"]


def test_its_pods_meet_the_schemas_of_kubernetes() -> None:
    for group in (CLUSTER["headGroupSpec"], WORKERS):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": group["template"]["spec"]}
        kubernetes_validate.validate(pod, "1.34", strict=True)
    kubernetes_validate.validate(FRONT, "1.34", strict=True)


def test_the_service_leads_to_the_nodes() -> None:
    (container,) = WORKERS["template"]["spec"]["containers"]
    (port,) = container["ports"]
    assert (port["containerPort"], FRONT["spec"]["ports"][0]["targetPort"]) == (FIRST_PORT, port["name"])
    assert FRONT["spec"]["selector"].items() <= WORKERS["template"]["metadata"]["labels"].items()


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # Ray Serve's, for an interval that it has no other setting for
def test_its_application_can_be_built() -> None:
    from agent_tts.cluster.app import build  # imports Ray Serve, 40 MB

    config: dict[str, Any] = yaml.safe_load(SERVICE["spec"]["serveConfigV2"])
    (application,) = config["applications"]
    args = application["args"]
    assert application["import_path"] == f"{build.__module__}:{build.__name__}"
    deployment: Any = build(args)._bound_deployment
    assert args["max_nodes"] <= WORKERS["replicas"]
    assert deployment.ray_actor_options["num_gpus"] == args["gpus"]
    grace_s = WORKERS["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s > deployment._deployment_config.graceful_shutdown_timeout_s > args["set"]["timeouts.drain_s"]
