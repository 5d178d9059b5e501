"""Other vendors' protocols, so that their clients work with only the URL changed: an adapter each over one session."""
