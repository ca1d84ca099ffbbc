"""Train a draft for any target, with the target as its own teacher."""
