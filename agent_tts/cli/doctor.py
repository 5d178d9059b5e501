"""`agent-tts doctor`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_tts.config.loading import find_config, load_settings
from agent_tts.doctor import Finding, Verdict, examine, wants_agent

MARKS = {Verdict.GOOD: ("✓", "green"), Verdict.NOTE: ("!", "yellow"), Verdict.BAD: ("✗", "red")}


def doctor(config: str | None, settings: dict[str, Any], *, as_json: bool) -> int:
    """Print the findings for a node of these settings; returns the exit code, 1 when it cannot run here."""
    loaded = load_settings(find_config(config), settings)
    findings = list(examine(loaded))
    bad = any(finding.verdict is Verdict.BAD for finding in findings)
    if as_json:
        told = [{name: value for name, value in asdict(finding).items() if value} for finding in findings]
        print(json.dumps({"ok": not bad, "findings": told}, indent=1))
    else:
        _show(findings, "agent-tts agent" if wants_agent(loaded) else "agent-tts serve", bad)
    return 1 if bad else 0


def _show(findings: list[Finding], command: str, bad: bool) -> None:
    console = Console(highlight=False)
    table = Table.grid(padding=(0, 1))
    table.add_column()
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for finding in findings:
        mark, style = MARKS[finding.verdict]
        found = Text(finding.found)
        if finding.advice:
            found.append(f"\n-> {finding.advice}", style=style)
        table.add_row(Text(mark, style=style), finding.what, found)
    console.print(table)
    console.print("[red]A node cannot run here." if bad else f"[green]A node can run here: {command}")
