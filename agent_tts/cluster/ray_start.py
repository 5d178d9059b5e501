"""`python -m agent_tts.cluster.ray_start ARGS`: `ray start`, which stays on loopback where it is told so.

Ray itself takes another address of the machine in place of 127.0.0.1, and then listens on all of its interfaces.
"""

from __future__ import annotations

import sys

from ray._private import ray_constants, services
from ray.scripts.scripts import main

if __name__ == "__main__":
    if "--node-ip-address=127.0.0.1" in sys.argv:
        # `ON_LOOPBACK` of `cli/cluster.py` has its other processes do so; by that variable this one would join no head.
        ray_constants.ENABLE_RAY_CLUSTER = True
        services.resolve_ip_for_localhost = lambda host: host
    main()  # type: ignore[no-untyped-call]
