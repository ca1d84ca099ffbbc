"""Trains a draft model for a target model, with the target as its teacher.

`data` holds samples, `model` the draft, `loop` the optimisation, `run` a whole training run.
It must not know the command line.
"""

__all__ = ["data", "loop", "model", "run"]
