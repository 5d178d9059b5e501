"""Tags in a text: what they ask for, and the text without them. Pure."""

from agent_tts.text.markup.offsets import Offsets
from agent_tts.text.markup.reader import Item, MarkTag, MarkupReader

__all__ = ["Item", "MarkTag", "MarkupReader", "Offsets"]
