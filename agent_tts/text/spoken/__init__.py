"""How numbers and signs are said, one file for each language."""
