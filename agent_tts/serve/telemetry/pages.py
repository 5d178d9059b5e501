"""The metrics of a node with several fronts: one page, merged from theirs. A page may be long, so threads make it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

_Family = tuple[str, str, str]  # name, help, type
_Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]  # by name and labels
Page = dict[_Family, _Samples]

LINE_SAMPLES = 100  # of one call of a parser, which keeps the interpreter to itself


def write(registry: CollectorRegistry) -> str:
    """The page of a front, for `read`: lines of JSON, which costs less than the format of Prometheus."""
    lines: list[str] = []
    for family in registry.collect():
        samples = [(each.name, each.labels, each.value) for each in family.samples]
        parts = [samples[start : start + LINE_SAMPLES] for start in range(0, len(samples) or 1, LINE_SAMPLES)]
        lines += [json.dumps((family.name, family.documentation, family.type, part)) for part in parts]
    return "\n".join(lines)


def read(page: str) -> Page:
    """The page of a front, as `write` made it."""
    found: Page = {}
    for name, text, kind, samples in map(json.loads, page.splitlines()):
        family = found.setdefault((name, text, kind), {})
        family |= {(sample, tuple(labels.items())): value for sample, labels, value in samples}
    return found


class NodePages:
    """The last page of each front, and what those that are gone have counted. Pure; a thread may merge meanwhile.

    Counters and histograms are added up over all fronts that the node ever had, so that none goes backwards; gauges
    over those that run.
    """

    def __init__(self) -> None:
        # They are kept by the front's number.
        self._pages: dict[int, Page] = {}
        self._gone: Page = {}

    def take(self, front: int, page: Page) -> None:
        self._pages[front] = page

    def lose(self, front: int) -> None:
        """A front is gone; another may come with its number."""
        page = self._pages.pop(front, {})
        counted = {family: samples for family, samples in page.items() if family[2] != "gauge"}
        self._gone = _sum([self._gone, counted])

    def merged(self, own: CollectorRegistry) -> str:
        """The page of the node, as Prometheus reads it: that of all fronts, and the supervisor's own."""
        return (generate_latest(self) + generate_latest(own)).decode()

    def collect(self) -> Iterator[Metric]:
        """The families of all fronts."""
        for (name, text, kind), samples in _sum([*self._pages.values(), self._gone]).items():
            family = Metric(name, text, kind)
            for (sample, labels), value in samples.items():
                family.add_sample(sample, dict(labels), value)
            yield family


def _sum(pages: Sequence[Page]) -> Page:
    total: Page = {}
    for family, samples in chain.from_iterable(page.items() for page in pages):
        into = total.setdefault(family, {})
        for key, value in samples.items():
            if key not in into:
                into[key] = value
            elif key[0].endswith("_created"):
                into[key] = min(into[key], value)
            else:
                into[key] += value
    return total
