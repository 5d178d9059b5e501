"""`python -m agent_tts.cluster.watch HEAD`: each second a line of JSON, the nodes that the cluster's directory knows.

A process of its own: one that is connected to Ray ends with Ray's head.
"""

from __future__ import annotations

import json
import sys
import time

import ray

from agent_tts.cluster.directory import NAME, NAMESPACE, TELL_S

ANSWER_S = 5.0


def main() -> None:
    ray.init(address=sys.argv[1], namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
    while True:
        nodes: list[object] = ray.get(ray.get_actor(NAME, NAMESPACE).nodes.remote(), timeout=ANSWER_S)
        print(json.dumps(nodes), flush=True)
        time.sleep(TELL_S)


if __name__ == "__main__":
    main()
