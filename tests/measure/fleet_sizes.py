"""The machines for a number of callers, from measured figures: `python -m tests.measure.fleet_sizes`.

It prints the tables of web/docs/fleet_sizes.md. No fleet of that size was run.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Annotated

import typer

# Measured: web/docs/performance.md. One GPU and its fronts carried them without a gap, a word every 40 ms.
CALLERS_A_GPU = 1_000
# us of a front's CPU for a frame of 80 ms, with a word every 40 ms.
FRONT_US = 101
# Cores of fronts for 700 callers over WebRTC on one node.
RTC_CORES, RTC_CALLERS = 7.9, 700
# us of HAProxy's CPU for a frame, 100 connections, without TLS: web/docs/cluster_door.md.
HAPROXY_US = 11
# The process of an engine, and the supervisor, use a core each at most.
ENGINE_CORES, SUPERVISOR_CORES = 1, 1
# Bits a second of a caller, without headers: samples of 16 bits at 24 kHz; Opus as WebRTC has it.
PCM_BITS, OPUS_BITS = 384_000, 32_000
FRAMES_A_SECOND = 12.5


@dataclass(frozen=True)
class Plan:
    """What a fleet needs for its callers.

    Args:
        callers: those who are spoken to at the same time.
        use: share of a GPU's callers that are planned for.
        gpus: GPUs of a machine.
        spare: machines that may fail or drain at the same time.
    """

    callers: int
    use: float
    gpus: int
    spare: int

    @property
    def gpus_busy(self) -> int:
        return ceil(self.callers / (CALLERS_A_GPU * self.use))

    @property
    def machines(self) -> int:
        return ceil(self.gpus_busy / self.gpus) + self.spare

    @property
    def front_cores(self) -> int:
        """Cores that fronts use for callers over WebSocket."""
        return ceil(self.callers * FRAMES_A_SECOND * FRONT_US / 1e6)

    @property
    def rtc_cores(self) -> int:
        """Cores that fronts use for callers over WebRTC."""
        return ceil(self.callers * RTC_CORES / RTC_CALLERS)

    @property
    def haproxy_cores(self) -> int:
        return ceil(self.callers * FRAMES_A_SECOND * HAPROXY_US / 1e6)

    @property
    def pcm_gbit(self) -> float:
        return self.callers * PCM_BITS / 1e9

    @property
    def opus_gbit(self) -> float:
        return self.callers * OPUS_BITS / 1e9

    @property
    def machine_cores(self) -> tuple[int, int]:
        """Cores of a machine whose share of the callers comes over WebSocket, or WebRTC, a quarter of them idle."""
        share = ceil(self.gpus_busy / self.gpus)
        rest = self.gpus * ENGINE_CORES + SUPERVISOR_CORES
        websocket = self.front_cores + self.haproxy_cores
        return ceil((websocket / share + rest) / 0.75), ceil((self.rtc_cores / share + rest) / 0.75)


def rows(plans: list[Plan]) -> list[str]:
    """The table in Markdown, a line each."""
    lines: list[tuple[str, list[str]]] = [
        ("callers, all spoken to", [f"{plan.callers:,}".replace(",", " ") for plan in plans]),
        ("GPUs", [str(plan.gpus_busy) for plan in plans]),
        ("machines, with the spare ones", [str(plan.machines) for plan in plans]),
        ("cores of fronts, WebSocket", [str(plan.front_cores) for plan in plans]),
        ("cores of HAProxy, WebSocket", [str(plan.haproxy_cores) for plan in plans]),
        ("cores of fronts, WebRTC", [str(plan.rtc_cores) for plan in plans]),
        ("cores of a machine, WebSocket; WebRTC", ["{}; {}".format(*plan.machine_cores) for plan in plans]),
        ("Gbit/s of PCM; of Opus", [f"{plan.pcm_gbit:.1f}; {plan.opus_gbit:.1f}" for plan in plans]),
    ]
    table = [f"| {name} | {' | '.join(cells)} |" for name, cells in lines]
    return [table[0], f"|---|{'---|' * len(plans)}", *table[1:]]


def main(
    callers: Annotated[str, typer.Option(help="numbers of callers, with commas")] = "1000,10000,100000",
    use: Annotated[float, typer.Option(min=0.01, max=1, help="share of what a GPU carries")] = 0.75,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of a machine")] = 8,
    spare: Annotated[int, typer.Option(min=0, help="machines that may be missing")] = 2,
) -> None:
    """Print what fleets need, as a table in Markdown."""
    print("\n".join(rows([Plan(int(number), use, gpus, spare) for number in callers.split(",")])))


if __name__ == "__main__":
    typer.run(main)
