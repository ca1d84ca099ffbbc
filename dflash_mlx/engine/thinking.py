"""Separates thoughts from the answer in a stream of text.

It must not know tokens or templates.
"""

from dflash_mlx.engine.answer_text import partial_match


class ThinkingSplitter:
    """Cuts text at the marks that open and close a thought; no character is lost or added.

    Args:
        marks: the opening and the closing mark; None if the model has none.
        inside: whether the text starts inside a thought.
    """

    def __init__(self, marks: tuple[str, str] | None, inside: bool = False) -> None:
        self._marks = marks
        self.inside = inside
        self._held = ""

    def feed(self, text: str) -> list[tuple[str, bool]]:
        """Return pieces of text, each with whether it is thought. Marks belong to the thought."""
        if self._marks is None:
            return [(text, False)] if text else []
        text, self._held = self._held + text, ""
        pieces: list[tuple[str, bool]] = []
        while text:
            mark = self._marks[1] if self.inside else self._marks[0]
            at = text.find(mark)
            if at < 0:
                self._held = text[len(text) - partial_match(text, (mark,)) :]
                pieces.append((text[: len(text) - len(self._held)], self.inside))
                break
            end = at + len(mark) if self.inside else at
            pieces.append((text[:end], self.inside))
            text = text[end:]
            if not self.inside:
                pieces.append((text[: len(mark)], True))
                text = text[len(mark) :]
            self.inside = not self.inside
        return [piece for piece in pieces if piece[0]]

    def finish(self) -> list[tuple[str, bool]]:
        """Return the text that was held back because it could have become a mark."""
        held, self._held = self._held, ""
        return [(held, self.inside)] if held else []
