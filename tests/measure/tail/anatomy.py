"""Joins what clients, front and engine have recorded: the stages of each first audio, the slowest ones in detail."""

from __future__ import annotations

import marshal
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

# Stages of a first audio in their order, each in ms since the one before; the first since the first word was sent.
STAGES = {
    "read": "front has the first word",
    "submit": "engine's loop has it (front's tick, pipe, reader thread, end of a turn)",
    "scheduled": "scheduler chooses the request for the first time",
    "decode": "row's first frame is launched",
    "frame": "engine hands out a frame",
    "written": "engine has written it to the front",
    "arrive": "front has decoded it",
    "told": "session gives it to the connection",
    "heard": "client has it",
}

Event = tuple[Any, ...]


def read(folder: Path) -> list[list[Event]]:
    """The events of each process."""
    return [marshal.loads(path.read_bytes()) for path in sorted(folder.glob("*.events"))]


def percentiles(values: Iterable[float]) -> str:
    """p50, p95, p99 and the most."""
    some = sorted(values)
    if not some:
        return "-"
    at = [some[min(len(some) - 1, int(len(some) * share))] for share in (0.5, 0.95, 0.99)]
    return "  ".join(f"{value:8.2f}" for value in [*at, some[-1]]) + f"   n {len(some)}"


class Front:
    """What a front has recorded, by context."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.opened: dict[str, tuple[float, tuple[int, int]]] = {}
        self.text: dict[str, float] = {}
        self.arrived: dict[tuple[int, int], float] = {}
        self.told: dict[str, float] = {}
        for event in events:
            match event:
                case ("open", at, context_id, engine, request_id):
                    self.opened[context_id] = at, (engine, request_id)
                case ("text", at, _, context_id):
                    self.text.setdefault(context_id, at)
                case ("arrive", at, _, _, firsts):
                    self.arrived.update((tuple(key), at) for key in firsts)
                case ("told", at, context_id):
                    self.told[context_id] = at


class Engine:
    """What an engine has recorded, by request."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.commands: dict[int, dict[str, float]] = defaultdict(dict)  # first of each kind
        self.by_seed: dict[int, int] = {}  # the visits differ in their seeds
        self.chosen: dict[int, list[tuple[float, int]]] = defaultdict(list)  # steps before the first frame
        self.states: dict[int, list[tuple[float, str]]] = defaultdict(list)  # of the row at their launches
        self.decoded: dict[int, float] = {}
        self.frame: dict[int, float] = {}
        self.written: dict[int, float] = {}
        self.kinds: dict[int, list[str]] = defaultdict(list)  # outputs up to the first frame
        self.steps: list[tuple[float, float]] = []
        waits: list[float] = []
        begun = 0.0
        for event in events:
            match event:
                case ("cmd", at, kind, request_id, seed):
                    self.commands[request_id].setdefault(kind, at)
                    if seed is not None:
                        self.by_seed[seed] = request_id
                case ("schedule", at, _, number, _, new, _):
                    for request_id in new:
                        self.chosen[request_id].append((at, number))
                case ("launch", at, _, new):
                    for request_id, state, runs, tokens, in_flight in new:
                        text = f"{state}{'+' if runs else '-'}{tokens}{f'/{in_flight}' if in_flight else ''}"
                        self.states[request_id].append((at, text))
                        if runs:
                            self.decoded.setdefault(request_id, at)
                case ("update", at, _, _, kinds, _):
                    for request_id, kind in kinds:
                        self.kinds[request_id].append(kind)
                        if kind == "FrameOutput":
                            self.frame[request_id] = at
                case ("step", at):
                    begun = at
                case ("stepped", at, *_):
                    self.steps.append((begun, at))
                case ("wait", at, _):
                    waits.append(at)
        for request_id, at in self.frame.items():
            self.written[request_id] = waits[min(len(waits) - 1, bisect_left(waits, at))]
        self.step_ends = [end for _, end in self.steps]

    def steps_between(self, begin: float, end: float) -> list[tuple[float, float]]:
        return self.steps[bisect_right(self.step_ends, begin) : bisect_right(self.step_ends, end)]


def stages(visit: dict[str, Any], front: Front, engine: Engine) -> dict[str, float] | None:
    """When each stage of a visit was reached; None where one is not recorded."""
    context_id, request_id = visit["id"], engine.by_seed.get(visit["seed"])
    if context_id not in front.opened or request_id is None:
        return None
    key = front.opened[context_id][1]
    chosen = [at for at, _ in engine.chosen.get(request_id, [])]
    found = {
        "read": front.text.get(context_id),
        "submit": engine.commands[request_id].get("AppendText"),
        "scheduled": chosen[0] if chosen else None,
        "decode": engine.decoded.get(request_id, chosen[0] if chosen else None),
        "frame": engine.frame.get(request_id),
        "written": engine.written.get(request_id),
        "arrive": front.arrived.get(key),
        "told": front.told.get(context_id),
        "heard": visit.get("audio"),
    }
    return {name: at for name, at in found.items() if at is not None} if None not in found.values() else None


def report(folder: Path, visits: Sequence[dict[str, Any]], lags: Sequence[Sequence[float]], slowest: int) -> list[str]:
    """Lines of text."""
    lines: list[str] = []
    heard = [visit for visit in visits if "audio" in visit]
    errors = [visit["error"] for visit in visits if "error" in visit]
    lines += [f"visits {len(visits)}, heard {len(heard)}, errors {len(errors)} {sorted(set(errors))}"]
    head = f"{'':34}{'p50':>8}  {'p95':>8}  {'p99':>8}  {'most':>8}"
    lines += ["", head]

    def line(name: str, values: Iterable[float]) -> None:
        lines.append(f"{name:34}{percentiles(values)}")

    ttfa = {visit["id"]: 1_000 * (visit["audio"] - visit["text"]) for visit in heard}
    line("first audio, client, ms", ttfa.values())
    line("the same, by the node (ttfa_ms)", [visit["ttfa_ms"] for visit in heard if visit.get("ttfa_ms") is not None])
    line("dial to greeting, ms", [1_000 * (visit["greeted"] - visit["dial"]) for visit in heard])
    line("queue_ms", [visit["queue_ms"] for visit in heard if "queue_ms" in visit])
    line("first word sent late, ms", [1_000 * visit["text_late"] for visit in heard])
    line("client's loop late, ms", [1_000 * late for _, late in lags])
    gaps = [1_000 * visit["gap_s"] for visit in heard]
    line("largest gap in speech, ms", gaps)
    lines.append(f"visits with a gap over 1 ms: {sum(gap > 1 for gap in gaps)}")

    fronts, engines = [], []
    for events in read(folder):
        kinds = {event[0] for event in events}
        if "schedule" in kinds:
            engines.append(Engine(events))
        elif "open" in kinds:
            fronts.append(Front(events))
    if not fronts or len(engines) != 1:
        return [*lines, f"{len(fronts)} fronts and {len(engines)} engines have recorded: no anatomy"]
    engine = engines[0]
    front_of = {context_id: front for front in fronts for context_id in front.opened}
    begin, end = min(visit["dial"] for visit in heard), max(visit["audio"] for visit in heard)

    found = {
        visit["id"]: stages(visit, front_of[visit["id"]], engine) if visit["id"] in front_of else None
        for visit in heard
    }
    whole = [(visit, at) for visit in heard if (at := found[visit["id"]]) is not None]
    lines += ["", f"stages of {len(whole)} first audios, ms each", head]
    spans: dict[str, list[float]] = defaultdict(list)
    for visit, at in whole:
        before = visit["text"]
        for name in STAGES:
            spans[name].append(1_000 * (at[name] - before))
            before = at[name]
    for name in STAGES:
        line(f"  {name}", spans[name])
    ids = {visit["id"]: engine.by_seed[visit["seed"]] for visit, _ in whole}
    line("engine steps, chosen to frame", [len(engine.chosen[ids[visit["id"]]]) for visit, _ in whole])
    line(
        "engine steps, text to frame",
        [len(engine.steps_between(at["submit"], at["frame"])) for _, at in whole],
    )
    slow = sorted(whole, key=lambda one: ttfa[one[0]["id"]])[-max(1, len(whole) // 20) :]
    lines += ["", "mean of the slowest twentieth against the middle, ms"]
    middle = sorted(whole, key=lambda one: ttfa[one[0]["id"]])[len(whole) * 2 // 5 : len(whole) * 3 // 5]
    for name, what in STAGES.items():
        means = []
        for some in (slow, middle):
            names = list(STAGES)
            at_before = names.index(name) - 1
            values = [at[name] - (at[names[at_before]] if at_before >= 0 else visit["text"]) for visit, at in some]
            means.append(1_000 * sum(values) / max(1, len(values)))
        lines.append(f"  {name:10}{means[0]:9.2f}{means[1]:9.2f}   {what}")

    lines += ["", "engine", head]
    lines += _engine_lines(engine, begin, end, line_of=lambda name, values: f"{name:34}{percentiles(values)}")
    for number, front in enumerate(fronts):
        lines += ["", f"front {number} of {len(fronts)}", head]
        lines += _front_lines(front, begin, end, line_of=lambda name, values: f"{name:34}{percentiles(values)}")

    lines += ["", f"the slowest {slowest}; times in ms since the first word was sent"]
    for visit, at in reversed(sorted(whole, key=lambda one: ttfa[one[0]["id"]])[-slowest:]):
        lines += _anatomy(visit, at, ids[visit["id"]], front_of[visit["id"]], engine, end - begin and begin)
    return lines


def _engine_lines(engine: Engine, begin: float, end: float, line_of: Any) -> list[str]:
    parts: dict[str, list[float]] = defaultdict(list)
    sizes: dict[tuple[int, int], int] = defaultdict(int)
    rows: list[float] = []
    entries: list[float] = []
    last_wait = last_stepped = begun = 0.0
    cpu: Event | None = None
    inbox_from = 0.0
    stalls: list[str] = []
    device: dict[float, float] = {}
    launches: dict[float, tuple[int, int]] = {}
    stalls += [
        f"  at {at - begin:.3f} s, before the run, a step of {1_000 * (at - begun):.1f} ms"
        for begun, at in engine.steps
        if at - begun > 0.02 and at < begin
    ]
    stalls += [
        f"  at {event[1] - begin:.3f} s, before the run, {event[2]:.1f} ms in the metrics"
        for event in engine.events
        if event[0] == "pong" and event[2] > 20 and event[1] < begin
    ]
    for event in engine.events:
        if not begin <= event[1] <= end:
            continue
        match event:
            case ("pong", at, step_ms):
                parts["longest step, as in the metrics"].append(step_ms)
            case ("wait", at, wait_s):
                if last_stepped:
                    parts["outbox, after a step"].append(1_000 * (at - last_stepped))
                last_stepped = 0.0
                last_wait, inbox_from = at, wait_s
            case ("step", at):
                if last_wait and inbox_from == 0:
                    parts["inbox and submits, no wait due"].append(1_000 * (at - last_wait))
                elif last_wait and inbox_from > 0:
                    parts["inbox longer than its wait"].append(1_000 * max(0.0, at - last_wait - inbox_from))
                begun = at
            case ("stepped", at, cpu_s, ready_s, _, _):
                parts["loop.step"].append(1_000 * (at - begun))
                if cpu is not None:
                    wall = at - cpu[1]
                    parts["turn, wall"].append(1_000 * wall)
                    parts["turn, wall less CPU"].append(1_000 * (wall - (cpu_s - cpu[2])))
                    parts["turn, ready without a CPU"].append(1_000 * (ready_s - cpu[3]))
                    if at - begun > 0.02:
                        stalls.append(_stall(f"at {at - begin:.3f} s a step of", at - begun, event, cpu))
                cpu = event
                last_stepped = at
            case ("schedule", at, till, _, (_, run, running, queued), _, _):
                parts["  scheduler.schedule"].append(1_000 * (till - at))
                parts["  running requests"].append(running)
                parts["  queued requests"].append(queued)
                rows.append(run)
            case ("update", at, till, *_):
                parts["  scheduler.update"].append(1_000 * (till - at))
            case (("_apply" | "_schedule" | "_collect" | "runner.update") as name, at, till):
                parts[f"  {name}"].append(1_000 * (till - at))
            case ("launch", at, till, _):
                parts["  _launch"].append(1_000 * (till - at))
            case ("graph", at, till, _, size, count, _):
                parts["    graphs.step"].append(1_000 * (till - at))
                sizes[size, bool(count)] += 1
                launches[at] = size, count
                if count:
                    entries.append(count)
            case ("device", at, ms):
                device[at] = ms
            case ("gc", at, till, generation):
                parts[f"collection {generation}"].append(1_000 * (till - at))
    for at, ms in device.items():
        if at in launches:
            size, count = launches[at]
            parts[f"  device, size {size}{' mixed' if count else ''}"].append(ms)
    lines = [line_of(name, values) for name, values in parts.items()]
    lines.append(line_of("rows of a step", rows))
    lines.append(line_of("prompt entries of mixed steps", entries))
    lines.append(
        "steps by size, mixed: " + ", ".join(f"{size}{'+' * mixed} {n}" for (size, mixed), n in sorted(sizes.items()))
    )
    if cpu is not None:
        lines.append(
            f"steps {len(parts['loop.step'])} in {end - begin:.1f} s; CPU of the thread since its start {cpu[2]:.1f} s"
        )
    return [*lines, f"steps over 20 ms: {len(stalls)}", *stalls[:40]]


def _stall(what: str, took_s: float, event: Event, before: Event) -> str:
    """What the thread did since the event before: (name, at, *`probe._usage`) each."""
    wall, cpu, ready = (1_000 * (event[index] - before[index]) for index in (1, 2, 3))
    return (
        f"  {what} {1_000 * took_s:.1f} ms: {cpu:.1f} of {wall:.1f} ms on a CPU, {ready:.1f} ready without one, "
        f"{event[4] - before[4]} minor faults, {event[5] - before[5]} major"
    )


def _front_lines(front: Front, begin: float, end: float, line_of: Any) -> list[str]:
    parts: dict[str, list[float]] = defaultdict(list)
    events: list[float] = []
    stalls: list[str] = []
    before: Event | None = None
    first: Event | None = None
    for event in front.events:
        if not begin <= event[1] <= end:
            continue
        match event:
            case ("lag", at, late, _, ready_s, _, _):
                parts["loop late"].append(1_000 * late)
                if before is not None and late > 0.02:
                    since = (*before[:2], *before[3:])
                    now = (*event[:2], *event[3:])
                    stalls.append(_stall(f"at {at - begin:.3f} s late by", late, now, since))
                if before is not None:
                    parts["ready without a CPU, each 5 ms"].append(1_000 * (ready_s - before[4]))
                before = event
                first = first or event
            case ("arrive", at, till, count, _):
                parts["events of the engine, handling"].append(1_000 * (till - at))
                events.append(count)
            case ("line", at, till, waiting):
                parts["waits in the line over 0.3 ms"].append(1_000 * (till - at))
                parts["flows in the line after these"].append(waiting)
            case (("text" | "send") as name, at, till, *_):
                parts[name].append(1_000 * (till - at))
            case ("gc", at, till, generation):
                parts[f"collection {generation}"].append(1_000 * (till - at))
    lines = [line_of(name, values) for name, values in parts.items()]
    lines.append(line_of("events of the engine at once", events))
    if before is not None and first is not None:
        share = 100 * (before[3] - first[3]) / (before[1] - first[1])
        lines.append(f"CPU of the front's thread: {share:.0f} % of a core")
    return [*lines, f"late by over 20 ms: {len(stalls)}", *stalls[:40]]


def _anatomy(
    visit: dict[str, Any], at: dict[str, float], request_id: int, front: Front, engine: Engine, begin: float
) -> list[str]:
    """One visit."""
    zero = visit["text"]

    def ms(when: float) -> str:
        return f"{1_000 * (when - zero):.1f}"

    opened = engine.commands[request_id].get("OpenRequest", zero)
    lines = [
        "",
        f"{visit['id']} (request {request_id}) at {zero - begin:.3f} s: {ms(visit['audio'])} ms, by the node "
        f"{visit.get('ttfa_ms')}, queue {visit.get('queue_ms')}, gap {1_000 * visit['gap_s']:.1f}",
        f"  dialled {ms(visit['dial'])}, greeted {ms(visit['greeted'])}, "
        f"front opens {ms(front.opened[visit['id']][0])}, engine has it {ms(opened)}, "
        f"started at the client {ms(visit.get('started', zero))}",
        "  " + ", ".join(f"{name} {ms(at[name])}" for name in STAGES),
        "  outputs: " + ", ".join(engine.kinds[request_id][:20]),
        "  row at its launches: " + ", ".join(f"{ms(when)} {state}" for when, state in engine.states[request_id][:30]),
        "  chosen: " + ", ".join(f"{ms(when)} #{number}" for when, number in engine.chosen[request_id][:30]),
        "  steps: "
        + ", ".join(f"{ms(begun)}-{ms(end)}" for begun, end in engine.steps_between(opened, at["written"])[:40]),
    ]
    late = [event for event in front.events if event[0] == "lag" and zero - 0.01 <= event[1] <= at["heard"] + 0.01]
    lines.append(
        "  front late: " + ", ".join(f"{ms(event[1])} by {1_000 * event[2]:.1f}" for event in late if event[2] > 0.002)
    )
    lined = [event for event in front.events if event[0] == "line" and at["arrive"] <= event[2] <= at["heard"]]
    longest = sorted(lined, key=lambda event: event[1] - event[2])[:3]
    lines.append("  longest waits in line: " + ", ".join(f"{ms(one[1])}-{ms(one[2])} ({one[3]})" for one in longest))
    return lines
