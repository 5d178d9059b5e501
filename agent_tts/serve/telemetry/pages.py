"""The metrics of a node with several fronts: one page, merged from theirs."""

from __future__ import annotations

import json
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

_Family = tuple[str, str, str]  # name, help, type
_Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]  # by name and labels
_Page = dict[_Family, _Samples]


def write(registry: CollectorRegistry) -> str:
    """The page of a front, for `NodePages`: JSON, which costs less than the format of Prometheus."""
    families = []
    for family in registry.collect():
        samples = [(each.name, each.labels, each.value) for each in family.samples]
        families.append((family.name, family.documentation, family.type, samples))
    return json.dumps(families)


class NodePages:
    """The last page of each front, and what those that are gone have counted. Pure.

    Counters and histograms are added up over all fronts that the node ever had, so that none goes backwards; gauges
    over those that run.
    """

    def __init__(self) -> None:
        # They are kept by the front's number.
        self._pages: dict[int, _Page] = {}
        self._gone: _Page = {}

    def take(self, front: int, page: str) -> None:
        """The page of a front, as `write` made it."""
        self._pages[front] = {
            (name, text, kind): {(sample, tuple(labels.items())): value for sample, labels, value in samples}
            for name, text, kind, samples in json.loads(page)
        }

    def lose(self, front: int) -> None:
        """A front is gone; another may come with its number."""
        page = self._pages.pop(front, {})
        _add(self._gone, {family: samples for family, samples in page.items() if family[2] != "gauge"})

    def merged(self, own: CollectorRegistry) -> str:
        """The page of the node, as Prometheus reads it: that of all fronts, and the supervisor's own."""
        return (generate_latest(self) + generate_latest(own)).decode()

    def collect(self) -> Iterator[Metric]:
        """The families of all fronts."""
        total: _Page = {}
        for page in (*self._pages.values(), self._gone):
            _add(total, page)
        for (name, text, kind), samples in total.items():
            family = Metric(name, text, kind)
            for (sample, labels), value in samples.items():
                family.add_sample(sample, dict(labels), value)
            yield family


def _add(total: _Page, page: _Page) -> None:
    for family, samples in page.items():
        into = total.setdefault(family, {})
        for key, value in samples.items():
            if key not in into:
                into[key] = value
            elif key[0].endswith("_created"):
                into[key] = min(into[key], value)
            else:
                into[key] += value
