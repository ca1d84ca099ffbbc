"""Which draft belongs to which target, in cards shipped, converted or chosen."""
