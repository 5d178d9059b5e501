"""What Ray does by names alone that it does not promise; `python -m agent_tts.cluster.ray_private` is Ray's command."""

from __future__ import annotations

import sys
from types import ModuleType

from ray._private import ray_constants, services

from agent_tts.errors import SettingsError


def replace(module: ModuleType, name: str, value: object) -> None:
    """Have Ray use `value` for a name of a module. Raises `SettingsError` where a version of Ray lacks the name."""
    if not hasattr(module, name):
        raise SettingsError(f"this version of Ray cannot be closed to others: {module.__name__} has no {name}")
    setattr(module, name, value)


def close_replica() -> None:
    """Have Ray Serve's replica in this process listen on no port.

    It would on all interfaces, for other deployments: without the cluster's token, and it unpickles what comes.
    """
    from ray.serve._private import replica

    replace(replica, "add_port_to_grpc_server", lambda *_: 0)


if __name__ == "__main__":
    from ray.scripts.scripts import main

    if "--node-ip-address=127.0.0.1" in sys.argv:
        # Ray would take another address of the machine, and listen on all of its interfaces. A variable has its other
        # processes take this one (`ON_LOOPBACK` of `cli/cluster.py`); by it this process would join no head.
        replace(ray_constants, "ENABLE_RAY_CLUSTER", True)
        replace(services, "resolve_ip_for_localhost", lambda host: host)
    main()
