"""The optimisation: recipe, target features, loss, training steps, checkpoints and evaluation.

It must not know options, plans or the folders of runs.
"""

__all__ = ["checkpoint", "evaluate", "features", "loss", "recipe", "trainer"]
