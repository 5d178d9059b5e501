"""`agent-tts doctor`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_tts.doctor import Verdict, examine

MARKS = {Verdict.GOOD: ("✓", "green"), Verdict.NOTE: ("!", "yellow"), Verdict.BAD: ("✗", "red")}


def doctor(port: int) -> int:
    """Print what was found; the exit code, 1 when a node cannot run here."""
    console = Console(highlight=False)
    findings = list(examine(port))
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
    bad = any(finding.verdict is Verdict.BAD for finding in findings)
    console.print("[red]A node cannot run here." if bad else "[green]A node can run here: agent-tts serve")
    return 1 if bad else 0
