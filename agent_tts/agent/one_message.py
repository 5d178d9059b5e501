"""The conversation as a language model's server takes it: one message of the user at a time."""

from __future__ import annotations

from typing import Any

from pipecat.processors.aggregators.llm_context import LLMContext, LLMContextMessage

from agent_tts.agent.realtime.conversation import MAX_CHARS, MAX_ITEMS


class OneMessageContext(LLMContext):
    """Keeps what the user says in a row as one message: servers that check roles refuse two of a user.

    It has as many messages and characters as a conversation of Realtime; the oldest are forgotten.
    """

    def add_message(self, message: LLMContextMessage) -> None:
        messages: list[Any] = self.get_messages()
        last, more = messages[-1] if messages else None, message
        if _said(last, "user") is not None and (text := _said(more, "user")) is not None:
            said = f"{_said(last, 'user')} {text}".strip()[-MAX_CHARS:]
            self.set_messages([*messages[:-1], {"role": "user", "content": said}])
        else:
            super().add_message(message)
        self._forget()

    def add_messages(self, messages: list[LLMContextMessage]) -> None:
        for message in messages:
            self.add_message(message)

    def _forget(self) -> None:
        """Leave out the oldest messages, but not the system's nor the last, and no result without its call."""
        messages: list[Any] = self.get_messages()
        items, chars = len(messages) - MAX_ITEMS, sum(map(_chars, messages)) - MAX_CHARS  # too many
        kept, is_forgotten = list[Any](), False
        for message in messages[:-1]:
            role = message.get("role") if isinstance(message, dict) else None
            is_over = items > 0 or chars > 0 or (is_forgotten and role == "tool")
            is_forgotten = is_over and role not in ("system", "developer")
            if is_forgotten:
                items, chars = items - 1, chars - _chars(message)
            else:
                kept.append(message)
        self.set_messages([*kept, messages[-1]])

    def last_of(self, role: str) -> str:
        """The text of the last message, if it is of this role."""
        messages: list[Any] = self.get_messages()
        return (_said(messages[-1], role) if messages else None) or ""


def _said(message: Any, role: str) -> str | None:
    """The text of a message of this role; None if it is not one."""
    content = message.get("content") if isinstance(message, dict) and message.get("role") == role else None
    return content.strip() if isinstance(content, str) else None


def _chars(message: Any) -> int:
    """The length of a message's text; of one with calls or parts, that of all of it."""
    content = message.get("content") if isinstance(message, dict) else None
    return len(content if isinstance(content, str) else str(message))
