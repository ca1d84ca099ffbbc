"""What this machine is, what fits on it, and what would be done."""
