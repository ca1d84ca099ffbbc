"""Which part of an answer's text is thought: an incremental splitter at a model's marks."""

from dflash_mlx.engine.marks import unfinished


class ThinkingSplitter:
    """Cuts text at the marks that open and close a thought; loses and adds no character."""

    def __init__(self, marks: tuple[str, str] | None, inside: bool = False) -> None:
        self._marks = marks
        self.inside = inside
        self._held = ""

    def feed(self, text: str) -> list[tuple[str, bool]]:
        """Return pieces of text with whether each is thought; marks belong to the thought."""
        if self._marks is None:
            return [(text, False)] if text else []
        text, self._held = self._held + text, ""
        pieces: list[tuple[str, bool]] = []
        while text:
            mark = self._marks[1] if self.inside else self._marks[0]
            at = text.find(mark)
            if at < 0:
                self._held = text[len(text) - unfinished(text, (mark,)) :]
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
        """Return what was held back as a possible mark."""
        held, self._held = self._held, ""
        return [(held, self.inside)] if held else []
