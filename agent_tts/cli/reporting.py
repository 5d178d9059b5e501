"""How a command ends: messages and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from agent_tts.errors import SettingsError, SpeechError, UnknownVoice

USAGE = 2  # a wrong option or setting
INTERRUPTED, TERMINATED = 130, 143  # a shell's exit codes for SIGINT and SIGTERM
BROKEN_PIPE = 141  # a shell's exit code for SIGPIPE


@contextmanager
def reported() -> Iterator[None]:
    """Turn errors that a user can act on into a message and an exit code."""
    try:
        yield
    except SettingsError as error:
        raise complain(str(error), USAGE) from None
    except BrokenPipeError:  # the reader of stdout has left
        raise typer.Exit(BROKEN_PIPE) from None
    except SpeechError as error:
        if isinstance(error, UnknownVoice):
            raise complain(f"{error.message}\n`agent-tts voices` lists all voices", 1) from None
        again = "" if error.retry_after_ms is None else f" (try again in {error.retry_after_ms} ms)"
        raise complain(f"{error.message}{again}", 1) from None
    except TimeoutError:
        raise complain("the node did not answer in time", 1) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def complain(message: str, code: int) -> typer.Exit:
    """Print an error; returns the exit to raise."""
    for line in message.splitlines():
        print(f"agent-tts: {line}", file=sys.stderr)
    return typer.Exit(code)
