"""OpenAI's Realtime API on the agent: one WebSocket is one conversation with the node's own models."""
