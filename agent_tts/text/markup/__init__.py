"""Tags in a text: what they ask for, and the text without them. Pure."""
