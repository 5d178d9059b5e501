"""The engine in a process of its own: wire format, child, and the front's side of it."""
