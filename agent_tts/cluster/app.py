"""The Ray Serve application: a replica looks after the node of its machine, and Ray Serve after the replicas.

No caller's byte passes through Ray: HAProxy carries them (`door.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray
from loguru import logger
from ray import serve
from ray.serve.api import RunTarget
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from agent_tts import __version__
from agent_tts.cluster.directory import NAME, NAMESPACE, TELL_S, Directory, NodeAddress
from agent_tts.cluster.kept_node import DEFAULT_FOLDER, FOLDER, KeptNode
from agent_tts.cluster.ray_private import close_replica
from agent_tts.cluster.scaling import Load
from agent_tts.config.loading import find_config, load_settings
from agent_tts.config.settings import Settings
from agent_tts.errors import SettingsError
from agent_tts.serve.access.fleet_socket import CountsServer
from agent_tts.system.processes import Deaths

APP = "agent-tts"
ANSWER_S = 2.0  # for the directory
LOST_S = 15.0  # without an answer of the node: it hangs
BACKOFF_S = (0.0, 1.0, 5.0)  # before a node that has ended is started again
UP_S, DOWN_S = 1.0, 300.0  # for which nodes have to be too few, or too many


def directory() -> Any:
    """The actor, made if there is none. The caller is connected to Ray."""
    once = {"name": NAME, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    return ray.remote(Directory).options(**once, max_restarts=-1, num_cpus=0, max_concurrency=1).remote()


class Replica:
    """Keeps one node alive. Ray Serve makes it, asks it for its health and its load, and ends it."""

    def __init__(self, options: dict[str, Any]) -> None:
        close_replica()
        context = ray.get_runtime_context()
        gpus = ",".join(context.get_accelerator_ids().get("GPU", []))
        host = options["host"] or str(ray.util.get_node_ip_address())
        self._ray_node = context.get_node_id()
        folder = Path(os.environ.get(FOLDER, DEFAULT_FOLDER)).expanduser()
        self._node = KeptNode(folder, _settings(options, host), host, gpus)
        self._host = host
        self._directory = directory()
        self._counts: CountsServer | None = None
        self._load: Load | None = None  # None before the node's first answer
        # Starts the node, then tells of it. Cancelled and awaited when Ray Serve ends this replica.
        self._keeper: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        # Whether the node is to end: then it is not started again.
        self._is_draining = False

    async def reconfigure(self, _: Any) -> None:
        """Ray Serve waits for it before it counts the replica as running: the node takes callers then."""
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(), name="keeper of a node")
            ready = asyncio.create_task(self._ready.wait())
            await asyncio.wait([self._keeper, ready], return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
            if self._keeper.done():
                self._keeper.result()

    async def check_health(self) -> None:
        """Raises `RuntimeError` if the node ends again and again: Ray Serve replaces this replica."""
        if self._keeper is not None and self._keeper.done():
            raise RuntimeError("the node ends again and again")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """The node's load, for `scaling.decide`."""
        return {} if self._load is None else asdict(self._load)

    async def __call__(self) -> None:
        """Nobody calls it: Ray Serve wants it."""

    # ------------------------------------------------------------ inside

    async def _keep(self) -> None:
        deaths = Deaths(BACKOFF_S)
        adopted = await self._node.start(self._serve_counts)
        logger.info("the node of {} is {}", self._host, "adopted" if adopted else "started")
        while True:
            await self._look_after()
            if self._is_draining:
                return
            pause_s = deaths.pause_s(asyncio.get_running_loop().time())
            if pause_s is None:
                raise SettingsError("the node ends again and again")
            logger.error("the node of {} has ended: it is started again", self._host)
            await asyncio.sleep(pause_s)
            await self._node.restart()

    async def _look_after(self) -> None:
        """Tell of the node until it has ended; one that hangs is killed."""
        loop = asyncio.get_running_loop()
        answered_at = loop.time()
        while self._node.is_alive:
            state, self._load = await self._node.look()
            if state != "lost":
                answered_at = loop.time()
            elif loop.time() > answered_at + LOST_S:
                logger.error("the node of {} has not answered for {:g} s: it is killed", self._host, LOST_S)
                self._node.kill()
            record = self._node.record
            assert record is not None
            address = NodeAddress(record.name, self._host, record.port, __version__)
            report = asdict(address) | {"ray_node": self._ray_node, "state": state} | asdict(self._load)
            self._ready.set()
            with contextlib.suppress(Exception):  # the directory is away: it is told in the next second
                await self._ask(self._directory.tell.remote(report))
            await asyncio.sleep(TELL_S)

    async def _serve_counts(self, path: Path) -> None:
        self._counts = CountsServer(path, lambda batch: self._ask(self._directory.exchange.remote(batch)))
        await self._counts.start()

    @staticmethod
    async def _ask(answer: Awaitable[Any]) -> Any:
        async with asyncio.timeout(ANSWER_S):
            return await answer

    async def __del__(self) -> None:
        """Ray Serve ends the replica: the node finishes its calls first, for `graceful_shutdown_timeout_s` at most."""
        self._is_draining = True
        await self._node.drain()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._counts is not None:
            await self._counts.close()
        if self._node.record is not None:
            with contextlib.suppress(Exception):
                await self._ask(self._directory.leave.remote(self._node.record.name))
        await self._node.release()


def _settings(options: dict[str, Any], host: str) -> Settings:
    """The settings of a node that others reach at `host`. Raises `SettingsError`."""
    if "settings" in options:
        return Settings.model_validate(options["settings"])
    config = options.get("config")
    return load_settings(find_config(config), options.get("set", {}) | {"host": host})


def build(options: dict[str, Any]) -> serve.Application:
    """The application of these options; `import_path` of a Serve config file, with the options as its `args`.

    Args:
        options: `settings` of the nodes, JSON with secrets; or `config` and `set`, by dotted keys, to which the
            environment of each machine adds. `host` (None: that of the machine in Ray), `gpus` (of a machine), `nodes`
            (fewest), `max_nodes`, and `down_s` (see `DOWN_S`).
    """
    drain_s = _settings(options, "127.0.0.1").timeouts.drain_s
    deployment = serve.deployment(
        name="node",
        max_replicas_per_node=1,
        ray_actor_options={"num_gpus": options["gpus"], "num_cpus": 0 if options["gpus"] else 1},
        graceful_shutdown_timeout_s=drain_s + 60,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=1,
        health_check_timeout_s=10,
        user_config={},
        autoscaling_config=AutoscalingConfig(
            min_replicas=options["nodes"],
            initial_replicas=min(max(options["nodes"], options.get("found", 0)), options["max_nodes"]),
            max_replicas=options["max_nodes"],
            upscale_delay_s=UP_S,
            downscale_delay_s=options.get("down_s", DOWN_S),
            look_back_period_s=3,
            aggregation_function="max",  # of the mean, a node that has just become full would be half empty
            metrics_interval_s=1,
            policy=AutoscalingPolicy(policy_function="agent_tts.cluster.scaling:decide"),
        ),
    )(Replica)
    return deployment.bind(options)


def main() -> None:
    """Deploy the application of the options, JSON on stdin, on the cluster of this head, unless it is deployed.

    To deploy it once more would replace all replicas. The directory comes last: where there is one, nothing is to do.
    """
    options = json.load(sys.stdin)
    ray.init(address=sys.argv[1], namespace=NAMESPACE, log_to_driver=False)
    if APP not in serve.status().applications:
        serve.start(proxy_location="Disabled")
        app = RunTarget(build(options), APP, route_prefix=None)
        serve.run_many([app], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
    directory()


if __name__ == "__main__":
    # Ray would send all machines this one's code of `__main__`; a machine runs its own version.
    from agent_tts.cluster import app

    app.main()
