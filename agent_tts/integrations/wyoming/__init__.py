"""Home Assistant's Wyoming protocol, in front of a node: `agent-tts wyoming`."""
