"""Other vendors' protocols, so that their clients work with only the URL changed: a adapter each over one session."""
