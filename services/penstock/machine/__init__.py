"""The machine and the installation: files, addresses, imports, errors of the system and of foreign code."""
