"""Other vendors' protocols, so that their clients work with only the URL changed: a codec each over one session."""
