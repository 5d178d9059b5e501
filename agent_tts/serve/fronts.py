"""How many front processes a node has: as set, or by the cores, engines and limits."""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

from loguru import logger

from agent_tts.config.settings import MAX_FRONTS, Settings
from agent_tts.ipc.engine_process import engine_settings, most_slots
from agent_tts.system.cores import cores

# What `auto` assumes. A core of a front carries so many callers; with so few cores several fronts gain nothing.
CALLERS_A_CORE = 250  # over WebSocket or HTTP, so that a front is half busy
PEERS_A_CORE = 50  # over WebRTC, whose audio is encoded and encrypted
CALLERS_AN_ENGINE = 1_000  # more than a GPU speaks for at once
PEERS_A_FRONT = 48  # the default of limits.rtc_peers
FEWEST_CONNECTIONS = 512  # of the defaults of limits.connections and limits.requests_per_s
FEWEST_CORES = 4

# The extension of `agent-tts agent`, and that of its fronts where calls run in other processes.
AGENT = "agent_tts.agent.server:extension"
RELAY = "agent_tts.agent.relay:extension"


class Role(NamedTuple):
    """What a front process is for."""

    listens: bool  # otherwise it gets calls of the agent from the fronts that listen
    extension: str | None  # see `serve.app.extension_of`


def roles(settings: Settings, extension: str | None) -> list[Role]:
    """The front processes of a node, by number; logs why there are fewer than set."""
    count = front_count(settings)
    if settings.fronts not in ("auto", count):
        logger.warning("fronts: {} are set, but on this system a node has one", settings.fronts)
    calls = settings.agent.processes if extension == AGENT else 0
    if calls and sys.platform != "linux":
        logger.warning("agent.processes: {} are set, but on this system calls run in the node's process", calls)
        calls = 0
    return [Role(True, RELAY if calls else extension)] * count + [Role(False, extension)] * calls


def front_count(settings: Settings) -> int:
    """The front processes of a node with these settings on this machine.

    One where the system is not Linux, which alone spreads connections over the listeners of one port.
    """
    if sys.platform != "linux":
        return 1
    if settings.fronts != "auto":
        return settings.fronts
    return automatic(settings, cores())


def automatic(settings: Settings, cores: float) -> int:
    """What `auto` gives on a machine with so many cores. Pure."""
    if cores < FEWEST_CORES:
        return 1
    engines, peers = len(engine_settings(settings)), settings.limits.rtc_peers
    callers = min(connections(settings), CALLERS_AN_ENGINE * engines)
    wanted = callers / CALLERS_A_CORE + (PEERS_A_FRONT if peers is None else peers) / PEERS_A_CORE
    # Connections are spread by chance: some fronts have a quarter more than the mean. A core is left to each engine,
    # and a quarter of the rest to the system.
    return max(1, min(math.ceil(1.25 * wanted), int(0.75 * (cores - engines)), MAX_FRONTS))


def connections(settings: Settings) -> int:
    """`limits.connections`; by default what the engines have room for."""
    most = settings.limits.connections
    return _room(settings) if most is None else most


def requests_per_s(settings: Settings) -> float:
    """`limits.requests_per_s`; by default one a second for each that the engines have room for."""
    most = settings.limits.requests_per_s
    return _room(settings) if most is None else most


def _room(settings: Settings) -> int:
    """The slots of all engines, and twice as many that wait for one."""
    return max(FEWEST_CONNECTIONS, 3 * most_slots(settings))


def rtc_peers(settings: Settings) -> int:
    """`limits.rtc_peers`; by default what the fronts of this machine serve in time."""
    peers = settings.limits.rtc_peers
    return PEERS_A_FRONT * front_count(settings) if peers is None else peers
