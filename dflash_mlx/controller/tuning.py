"""What a pair has learned while it is loaded, shared by its requests.

Every request decides for itself; from the ones before it has the costs of rounds, whether
drafting ahead pays, and a first idea of how much is accepted.
"""

from dflash_mlx.controller.acceptance import Start
from dflash_mlx.controller.adaptive import AdaptiveBlock
from dflash_mlx.controller.costs import CostCurve, LiveCosts
from dflash_mlx.decode.early_draft import Overlap


class Tuning:
    """Costs and habits of a pair of up to `max_rows` rows. Used by one request at a time.

    A `start` that was learned with blocks of another size is left out. `kernels` tells the Metal
    kernels that the costs were measured with from others.
    """

    def __init__(
        self,
        curve: CostCurve,
        max_rows: int,
        start: Start | None = None,
        kernels: str = "stock",
    ) -> None:
        self.costs = LiveCosts(curve, max_rows)
        self.kernels = kernels
        self.start = start if start and len(start.tries) == max_rows - 1 else Start()
        self._overlaps: dict[int | None, Overlap] = {}

    def overlap(self, block: int | None = None) -> Overlap:
        """Return the trial of drafting ahead in rounds of `block` rows, or of chosen ones (None).

        A trial compares the times of its rounds, so rounds of other sizes have one of their own.
        """
        return self._overlaps.setdefault(block, Overlap())

    def policy(self) -> AdaptiveBlock:
        """Return the block policy of one request."""
        return AdaptiveBlock(self.costs, self.start, self.overlap())

    def measured(self, curve: CostCurve, kernels: str) -> None:
        """Put new costs in the place of what is known: these kernels were chosen meanwhile."""
        self.costs = LiveCosts(curve, self.costs.max_rows)
        self.kernels = kernels

    def learn(self, policy: AdaptiveBlock) -> None:
        """Take over what a finished request has found out about acceptance."""
        if (found := policy.seen()).tries:
            self.start = self.start.joined(found)
