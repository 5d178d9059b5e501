"""An adapter of Home Assistant's Wyoming protocol to a node: `agent-tts wyoming`."""
