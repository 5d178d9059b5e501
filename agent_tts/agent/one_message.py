"""The conversation as a language model's server takes it: one message of the user at a time."""

from __future__ import annotations

from typing import Any

from pipecat.processors.aggregators.llm_context import LLMContext, LLMContextMessage


class OneMessageContext(LLMContext):
    """Keeps what the user says in a row as one message: servers that check roles refuse two of a user."""

    def add_message(self, message: LLMContextMessage) -> None:
        messages: list[Any] = self.get_messages()
        last, more = messages[-1] if messages else None, message
        if _said(last, "user") is not None and (text := _said(more, "user")) is not None:
            self.set_messages([*messages[:-1], {"role": "user", "content": f"{_said(last, 'user')} {text}".strip()}])
        else:
            super().add_message(message)

    def add_messages(self, messages: list[LLMContextMessage]) -> None:
        for message in messages:
            self.add_message(message)

    def last_of(self, role: str) -> str:
        """The text of the last message, if it is of this role."""
        messages: list[Any] = self.get_messages()
        return (_said(messages[-1], role) if messages else None) or ""


def _said(message: Any, role: str) -> str | None:
    """The text of a message of this role; None if it is not one."""
    content = message.get("content") if isinstance(message, dict) and message.get("role") == role else None
    return content.strip() if isinstance(content, str) else None
