"""Acceptance counts for tests."""

from dflash_mlx.controller.acceptance import AcceptanceCounts


def counts_of(*rates):
    """Return counts with these conditional acceptance rates and so much evidence that no prior
    matters.
    """
    return AcceptanceCounts((1e6,) * len(rates), tuple(1e6 * rate for rate in rates))
