"""`agent-tts cluster`: many machines behind one address (needs agent-tts[cluster])."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from agent_tts.cli.options import Config, Set, command_of, settings_of
from agent_tts.errors import SettingsError, needing

cluster = typer.Typer(
    no_args_is_help=True, help="Many machines behind one address: Ray supervises, HAProxy carries the callers."
)

HEAD_PORT, PORT = 6379, 8100
# Ray listens on loopback alone only at this address, and where this variable is 0: see `cluster/ray_private.py`.
RAY_LOOPBACK, ON_LOOPBACK = "127.0.0.1", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
ANSWER_S = 30.0  # for Ray to answer a command

Folder = Annotated[
    Path | None, typer.Option(help="For this machine's state.", show_default="~/.local/state/agent-tts/cluster")
]
Head = Annotated[
    str | None, typer.Option(help="HOST:PORT of the cluster's head.", show_default="that of this machine's cluster")
]
Token = Annotated[
    str | None,
    typer.Option(envvar="RAY_AUTH_TOKEN", help="Of the cluster; `start` tells it.", show_default="this machine's"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFlags:
    """The machine that `start` and `join` take into a cluster, and its door."""

    host: Annotated[
        str | None, typer.Option(help="This machine's address for others.", show_default="that of its default route")
    ] = None
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Where callers come; 0: any that is free.")] = PORT
    tls_pem: Annotated[str | None, typer.Option(help="PEM file: the certificate, those between, and its key.")] = None
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Loopback port for HAProxy's /metrics.", show_default="none")
    ] = None
    accept_proxy: Annotated[
        bool, typer.Option("--accept-proxy", help="Callers come by a load balancer that speaks the PROXY protocol.")
    ] = False
    connections_per_address: Annotated[
        int | None, typer.Option(min=1, help="Most connections of an address at this door.", show_default="any number")
    ] = None
    targets: Annotated[
        Path | None, typer.Option(help="File with all nodes for Prometheus' file_sd_configs.", show_default="none")
    ] = None
    gpus: Annotated[
        int | None, typer.Option(min=0, help="GPUs of each machine.", show_default="as many as there are")
    ] = None
    cpus: Annotated[int | None, typer.Option(min=1, help="CPUs that Ray may count on.", show_default="all")] = None
    folder: Folder = None


MACHINE = MachineFlags()


@command_of(cluster)
def start(
    context: typer.Context,
    config: Config = None,
    set_: Set = None,
    machine: MachineFlags = MACHINE,
    head_port: Annotated[int, typer.Option(min=1, max=65_535, help="Where machines join.")] = HEAD_PORT,
    nodes: Annotated[int, typer.Option(min=1, help="Fewest nodes.")] = 1,
    max_nodes: Annotated[int, typer.Option(min=1, help="Most nodes, one a machine.")] = 64,
    idle_s: Annotated[float, typer.Option(min=1, help="For which a node is too many before it drains.")] = 300.0,
) -> None:
    """Start a cluster: this machine is its head, runs a node, and has its door open, until Ctrl+C.

    The settings are those of every node. Callers come to any machine's door.
    """
    from agent_tts.cluster.machine import is_taken
    from agent_tts.config.loading import find_config, load, load_settings
    from agent_tts.doctor.gpu import gpus as found_gpus
    from agent_tts.serve.processes.reload import with_secrets

    host, place = _address(machine.host), _folder(machine.folder)
    flags = {key: value for key, value in settings_of(context).items() if key != "port"} | {"host": host}
    defaults = {"limits.ready_share": 0.9, "timeouts.drain_s": 3_600, "fleet.secret": _secret(place / "secret")}
    path = find_config(config)
    given = load(path, flags).sources
    kept = {key: value for key, value in defaults.items() if key not in given}
    settings = load_settings(path, kept | flags)
    ray_host = RAY_LOOPBACK if _is_local(host) else host
    head = f"{ray_host}:{head_port}"
    if is_taken(ray_host, head_port):
        raise SettingsError(f"a cluster has its head at {head} already: `agent-tts cluster join {head}`")
    options = {
        "settings": with_secrets(settings),
        "host": host if _is_local(host) else None,
        "gpus": len(found_gpus()) if machine.gpus is None else machine.gpus,
        "nodes": nodes,
        "max_nodes": max_nodes,
        "down_s": idle_s,
    }
    _authenticate(place, _secret(place / "token"), head)
    _take_part(machine, host, head, options)


@command_of(cluster)
def join(
    head: Annotated[str, typer.Argument(help="HOST:PORT of the cluster's head.")],
    machine: MachineFlags = MACHINE,
    token: Token = None,
) -> None:
    """Have this machine take part in a cluster, with a door and a node where one is needed, until Ctrl+C."""
    from agent_tts.cluster.machine import is_taken
    from agent_tts.system.processes import write_private

    name, _, number = head.rpartition(":")
    if not name or not number.isdecimal() or not 0 < int(number) < 65_536:
        raise SettingsError(f"{head}: the head's address is HOST:PORT, such as 10.0.0.5:{HEAD_PORT}")
    if not is_taken(name, int(number)):
        raise SettingsError(f"no cluster answers at {head}: `agent-tts cluster start` there")
    place, host = _folder(machine.folder), _address(machine.host)
    if _is_local(name) and not _is_local(host):
        raise SettingsError(f"{head} is of this machine alone, and its nodes may have no keys: --host {name}")
    _authenticate(place, token, head)
    _ray("health-check", "--address", head)
    if token is not None:
        write_private(place / "token", token)
    _take_part(machine, host, head, None)


@command_of(cluster)
def status(
    head: Head = None,
    token: Token = None,
    watch: Annotated[bool, typer.Option("--watch", help="Until Ctrl+C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    folder: Folder = None,
) -> None:
    """Show the nodes of a cluster: streams, capacity, versions, drains. On any of its machines."""
    with ExitStack() as stack:
        reports = stack.enter_context(closing(_reports(_head_of(head, token, folder))))
        live = None if as_json else stack.enter_context(Live(console=Console(), auto_refresh=False))
        for known in reports if watch else islice(reports, 1):
            if live is None:
                print(json.dumps(known), flush=True)
            else:
                live.update(_table(known), refresh=True)


@command_of(cluster)
def drain(
    node: Annotated[str, typer.Argument(help="Its name; `agent-tts cluster status` lists them.")],
    head: Head = None,
    token: Token = None,
    folder: Folder = None,
) -> None:
    """Take a node's machine out: when another has a node in its place, it ends with its last call."""
    address = _head_of(head, token, folder)
    with closing(_reports(address)) as reports:
        known = next(reports)
    machine = next((report["ray_node"] for report in known if report["name"] == node), None)
    if machine is None:
        raise SettingsError(f"no node is named {node}; there are {', '.join(each['name'] for each in known) or 'none'}")
    reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "agent-tts cluster drain"]
    deadline = ["--deadline-remaining-seconds", str(24 * 3_600)]
    _ray("drain-node", "--address", address, "--node-id", machine, *reason, *deadline)
    print(f"{node} drains when another machine has a node in its place: `agent-tts cluster status --watch` shows it")


@command_of(cluster)
def stop(folder: Folder = None) -> None:
    """Take this machine out of its cluster, when its calls have ended."""
    from agent_tts.cluster.machine import running

    place = _folder(folder)
    pid = running(place)
    if pid is None:
        raise SettingsError(f"this machine is in no cluster ({place})")
    os.kill(pid, signal.SIGTERM)
    with Console(stderr=True).status("the calls of this machine end"):
        while running(place) is not None:
            time.sleep(0.1)


# ---------------------------------------------------------------- inside


def _secret(path: Path) -> str:
    """The same at each start: nodes with other settings than they were started with are not adopted."""
    from agent_tts.system.processes import write_private

    if not path.exists() or not path.read_text().strip():
        write_private(path, secrets.token_urlsafe(32))
    return path.read_text().strip()


def _authenticate(folder: Path, token: str | None, head: str) -> None:
    """Have the processes that this one starts speak to Ray with the cluster's token, and to none without it."""
    try:
        token = token or (folder / "token").read_text().strip()
    except OSError:
        raise SettingsError(
            "the cluster's token is not known here: --token, as `agent-tts cluster start` told"
        ) from None
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    if _is_local(head.rpartition(":")[0]):
        os.environ[ON_LOOPBACK] = "0"


def _folder(folder: Path | None) -> Path:
    """The folder of this machine's state. Raises SettingsError: Ray is not installed."""
    with needing("cluster"):
        import ray.serve  # noqa: F401
    from agent_tts.cluster.kept_node import DEFAULT_FOLDER

    return (folder or Path(DEFAULT_FOLDER)).expanduser().absolute()


def _is_local(host: str) -> bool:
    from agent_tts.config.settings import is_loopback

    return is_loopback(host)


def _address(host: str | None) -> str:
    """The address of this machine that a name stands for; None: that on its default route. Nothing is sent to it."""
    if host is not None:
        try:
            return str(sorted(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))[0][4][0])  # IPv4 comes first
        except (OSError, UnicodeError):
            raise SettingsError(f"--host {host}: there is no such address") from None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _take_part(machine: MachineFlags, host: str, head: str, options: dict[str, Any] | None) -> None:
    import asyncio

    from agent_tts.cluster.door import Door
    from agent_tts.cluster.haproxy import Callers
    from agent_tts.cluster.machine import Machine
    from agent_tts.serve.telemetry.logs import log_to_stderr

    place = _folder(machine.folder)
    log_to_stderr("info")
    ray = [f"--node-ip-address={RAY_LOOPBACK if _is_local(host) else host}"]
    ray += [] if machine.gpus is None else [f"--num-gpus={machine.gpus}"]
    ray += [] if machine.cpus is None else [f"--num-cpus={machine.cpus}"]
    told = (machine.tls_pem, machine.metrics_port, machine.accept_proxy, machine.connections_per_address)
    door = Door(machine.port, host if _is_local(host) else "0.0.0.0", place / "door", Callers(*told))

    def started() -> None:
        scheme = "http" if machine.tls_pem is None else "https"
        path = place / "token"
        told = path.read_text() if sys.stderr.isatty() else f"$(cat {path})"  # secrets do not belong in logs
        print(f"agent-tts cluster: {scheme}://{host}:{door.port}", file=sys.stderr)
        print(f"machines join with: agent-tts cluster join {head} --token {told}", file=sys.stderr)

    asyncio.run(Machine(place, head, ray, door, options, machine.targets).run(started))


def _head_of(head: str | None, token: str | None, folder: Path | None) -> str:
    place = _folder(folder)
    if head is None:
        try:
            head = (place / "head").read_text()
        except OSError:
            raise SettingsError("this machine is in no cluster: name its head (--head HOST:PORT)") from None
    _authenticate(place, token, head)
    return head


def _ray(*command: str) -> None:
    """A command of Ray's. Raises `SettingsError`."""
    from agent_tts.system.processes import module_command

    module = module_command("ray.scripts.scripts", *command)
    try:
        done = subprocess.run(module, capture_output=True, text=True, timeout=ANSWER_S)
    except subprocess.TimeoutExpired:
        raise _no_answer("") from None
    if done.returncode:
        raise _no_answer(done.stderr or done.stdout)


def _reports(head: str) -> Generator[list[dict[str, Any]]]:
    """What the cluster's nodes tell, each second. Raises `SettingsError` when the cluster does not answer."""
    from agent_tts.system.processes import module_command

    command = module_command("agent_tts.cluster.watch", head)
    with (
        tempfile.TemporaryFile("w+") as complaints,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True) as watcher,
    ):
        assert watcher.stdout is not None
        late = threading.Timer(ANSWER_S, watcher.kill)  # later, it looks after its own deadline
        late.start()
        try:
            for line in watcher.stdout:
                late.cancel()
                yield json.loads(line)
        finally:
            late.cancel()
            watcher.kill()
        complaints.seek(0)
        raise _no_answer(complaints.read())


def _no_answer(said: str) -> SettingsError:
    if "InvalidAuthToken" in said:
        return SettingsError("the cluster has another token: `agent-tts cluster start` told it there")
    lines = said.strip().splitlines() or [f"it said nothing within {ANSWER_S:g} s"]
    return SettingsError(f"the cluster does not answer: {lines[-1]}")


def _table(known: list[dict[str, Any]]) -> Table:
    from agent_tts.cluster.directory import address_of

    table = Table("node", "address", "state", "streams", "waiting", "first audio p95", "version")
    for node in known:
        first = f"{node['first_audio_s'] * 1_000:.0f} ms" if node["first_audio_s"] else "-"
        streams, waiting = f"{node['used']:.0f} of {node['slots']:.0f}", f"{node['waiting']:.0f}"
        address = address_of(node).target
        table.add_row(node["name"], address, node["state"], streams, waiting, first, node["version"])
    used, slots = (sum(node[name] for node in known) for name in ("used", "slots"))
    table.add_section()
    table.add_row(f"{len(known)} nodes", "", "", f"{used:.0f} of {slots:.0f}", "", "", "")
    return table
