"""From a name to a local folder: what is on this machine, and what the hub has."""
