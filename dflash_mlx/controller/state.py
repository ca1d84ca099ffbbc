"""What the controller has learned of a loaded pair, shared by its requests.

It must not know how the pair was loaded or where its costs are stored.
"""

from dflash_mlx.controller.acceptance import AcceptanceCounts
from dflash_mlx.controller.adaptive import AdaptiveBlock
from dflash_mlx.controller.costs import CostCurve, LiveCosts
from dflash_mlx.decode.early_draft import EarlyDraftTrial


class ControllerState:
    """Costs and acceptance counts of a pair with blocks of up to `max_block_size` tokens.

    One request at a time uses it. Counts for another block size are ignored. `kernels` is the
    digest of the Metal kernels that the costs were measured with.
    """

    def __init__(
        self,
        curve: CostCurve,
        max_block_size: int,
        counts: AcceptanceCounts | None = None,
        kernels: str = "stock",
    ) -> None:
        self.costs = LiveCosts(curve, max_block_size)
        self.kernels = kernels
        fits = counts is not None and len(counts.n_drafted) == max_block_size - 1
        self.counts = counts if counts and fits else AcceptanceCounts()
        self._early_draft_trials: dict[int | None, EarlyDraftTrial] = {}

    def early_draft_trial(self, block_size: int | None = None) -> EarlyDraftTrial:
        """Return the trial of drafting ahead for a fixed block size, or for chosen ones (None).

        A trial compares times of rounds, so each fixed block size has its own.
        """
        return self._early_draft_trials.setdefault(block_size, EarlyDraftTrial())

    def policy(self) -> AdaptiveBlock:
        """Return the block-size policy of one request."""
        return AdaptiveBlock(self.costs, self.counts, self.early_draft_trial())

    def replace_costs(self, curve: CostCurve, kernels: str) -> None:
        """Replace the costs with new measurements, because other kernels were chosen."""
        self.costs = LiveCosts(curve, self.costs.max_block_size)
        self.kernels = kernels

    def learn(self, policy: AdaptiveBlock) -> None:
        """Add the acceptance counts of a finished request."""
        if (counts := policy.acceptance_counts()).n_drafted:
            self.counts = self.counts.with_request(counts)
