"""Figures as tables, JSON files and plots; and what they depend on: the machine, its GPUs, versions."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from agent_tts import __version__
from agent_tts.doctor.gpu import gpus
from agent_tts.errors import SettingsError, needing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLOT_SUFFIXES = (".png", ".svg", ".pdf")
PACKAGES = ("uvicorn", "uvloop", "websockets", "aiortc", "numpy", "torch", "triton", "faster-whisper", "speechmos")


def document(kind: str, node: Mapping[str, Any], runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Everything that is needed to measure the same again."""
    about = {"bench": kind, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    return about | {"command": ["agent-tts", *sys.argv[1:]], "device": device(), "node": node, "runs": list(runs)}


def check_output(option: str, path: Path) -> None:
    """Tell before a long measurement what would go wrong after it. Raises SettingsError: the file cannot be written."""
    if not path.parent.is_dir():
        raise SettingsError(f"{option} {path.name}: there is no such folder")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise SettingsError(f"{option} {path.name}: cannot be written")


def write_json(path: Path, found: dict[str, Any]) -> None:
    """Write figures to a file. Raises SettingsError: it cannot be written."""
    try:
        path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--json {path.name}: {error.strerror}") from None


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], width: int | None = None) -> None:
    """Print figures, or what rich draws; `width` is in characters, by default the terminal's."""
    shown = Table(*columns, title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for column in shown.columns[1:]:
        column.justify = "right"
    for row in rows:
        shown.add_row(*("-" if cell is None else cell if isinstance(cell, Bar) else str(cell) for cell in row))
    Console(highlight=False, width=width).print(shown)


def table_of(title: str, columns: Sequence[tuple[str, str]], runs: Sequence[Mapping[str, Any]]) -> None:
    """Print figures of runs: titles of columns, and where each one's figure is in a run, such as `ttfa_ms.p50`."""
    table(title, [name for name, _ in columns], [[_cell(run, path) for _, path in columns] for run in runs])


def _cell(run: Any, path: str) -> object:
    for name in path.split("."):
        run = run.get(name)
    return counted(run) if isinstance(run, dict) else run


def counted(counts: dict[str, int]) -> str:
    """Errors by code, in short."""
    return ", ".join(f"{count} {code}" for code, count in sorted(counts.items())) or "0"


class Plot:
    """A figure in a file, made before the measurement. Raises SettingsError: no matplotlib, or no such folder."""

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() not in PLOT_SUFFIXES:
            raise SettingsError(f"--plot {path.name}: the name ends in one of {', '.join(PLOT_SUFFIXES)}")
        check_output("--plot", path)
        with needing("bench"):
            import matplotlib

            matplotlib.use("agg")
            from matplotlib.figure import Figure
        self._path = path
        self._figure = Figure(figsize=(8, 4.5), layout="constrained")
        self.axes: Axes = self._figure.add_subplot()
        self.axes.grid(alpha=0.3)

    def times(
        self, title: str, runs: Sequence[tuple[str, Sequence[float | None]]], label: str = "time to first audio, ms"
    ) -> None:
        """Cumulative distributions of times in ms, a line for each that has some; None is no time."""
        for name, times_ms in runs:
            if known := [ms for ms in times_ms if ms is not None]:
                self.axes.ecdf(known, label=name)
        self.axes.set(title=title, xlabel=label, ylabel="share", ylim=(0, 1))
        self.axes.set_xscale("log")
        self.axes.xaxis.set_major_formatter("{x:g}")
        self.axes.xaxis.set_minor_formatter("{x:g}")
        self.axes.legend()

    def lines(
        self, title: str, x: Sequence[float], series: Mapping[str, Sequence[float]], labels: tuple[str, str]
    ) -> None:
        """Figures over the size of the load."""
        for name, values in series.items():
            self.axes.plot(x, values, marker="o", label=name)
        self.axes.set(title=title, xlabel=labels[0], ylabel=labels[1])
        self.axes.legend()

    def bars(self, title: str, names: Sequence[str], series: Mapping[str, Sequence[float]], unit: str) -> None:
        """Figures side by side, a group for each name; so far apart that the axis is logarithmic."""
        width = 0.8 / len(series)
        for place, (label, values) in enumerate(series.items()):
            at = [group + (place - (len(series) - 1) / 2) * width for group in range(len(names))]
            drawn = self.axes.bar(at, values, width, label=label)
            self.axes.bar_label(drawn, fmt="{:.3g}")
        self.axes.set_xticks(range(len(names)), names)
        self.axes.set(title=title, ylabel=unit)
        self.axes.set_yscale("log")
        self.axes.legend()

    def panels(
        self, title: str, names: Sequence[str], figures: Mapping[str, Sequence[tuple[float, ...] | None]]
    ) -> None:
        """A panel for each figure with a point (value, low, high) for each name, where it has one."""
        self._figure.clear()
        self._figure.set_size_inches(9, 1 + len(figures) * (0.4 + 0.2 * len(names)))
        self._figure.suptitle(title)
        panels = self._figure.subplots(len(figures), squeeze=False)[:, 0]
        for axes, (label, points) in zip(panels, figures.items(), strict=True):
            for place, point in enumerate(points):
                if point is not None:
                    value, low, high = point
                    reach = [[max(0, value - low)], [max(0, high - value)]]
                    axes.errorbar(value, place, xerr=reach, fmt=f"C{place % 10}o", capsize=3)
            axes.set_yticks(range(len(names)), names)
            axes.set_ylim(len(names) - 0.5, -0.5)
            axes.set_title(label, loc="left", fontsize="small")
            axes.grid(alpha=0.3)

    def save(self) -> None:
        """Write the file. Raises SettingsError: it cannot be written."""
        try:
            self._figure.savefig(self._path, dpi=150)
        except OSError as error:
            raise SettingsError(f"--plot {self._path.name}: {error.strerror}") from None


def device() -> dict[str, Any]:
    """The machine and the versions. What is not there is left out."""
    versions = {"agent-tts": __version__}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    found: dict[str, Any] = {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
    }
    if present := gpus():
        found["gpus"] = [{name: gpu[name] for name in ("name", "driver", "memory_total_mib")} for gpu in present]
    if cuda := cuda_of_torch():
        found["cuda"] = cuda
    return found


def cuda_of_torch() -> str | None:
    """The CUDA that the installed torch is built for; None without torch, and for a build without CUDA."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    with contextlib.suppress(OSError):
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
        if found := re.search(r"^cuda\b[^=]*=\s*['\"]([0-9.]+)['\"]", text, re.MULTILINE):
            return found[1]
    return None


def _cpu() -> str:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor()
