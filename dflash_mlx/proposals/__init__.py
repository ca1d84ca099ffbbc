"""Draft tokens found in text: copies from the context, and a predicted answer.

It must not know models, caches, blocks or time; it maps token ids to token ids.
"""

__all__ = ["context_copy", "prediction", "source", "suffix_automaton"]
