"""`python -m agent_tts` is `agent-tts`."""

from __future__ import annotations

from agent_tts.cli import main

if __name__ == "__main__":
    main()
