"""Text for speech: an LLM's output in, units to speak out."""
