"""The text that conversions are measured on, written for this project, and prompts of its kinds.

Prose, code, arithmetic, a list and three languages: what quantization spoils first differs.
"""

TEXT = """\
The lighthouse keeper counted the ships every evening and wrote the number into a grey book. On \
clear days there were twenty or more; in November, when fog lay on the water until noon, two.

def merge(left: list[int], right: list[int]) -> list[int]:
    merged = []
    while left and right:
        merged.append(left.pop(0) if left[0] <= right[0] else right.pop(0))
    return merged + left + right

A train travels 210 km at 84 km per hour: 210 / 84 = 2.5, so the journey takes two and a half hours.

1. Dig a hole twice as wide as the roots.
2. Set the tree straight and fill the hole.
3. Water it once a week.

Die Katze schläft auf dem warmen Ofen. Le boulanger ouvre sa boutique à six heures. El río baja \
crecido en primavera.

{"name": "merge", "arguments": {"left": [1, 4], "right": [2]}, "result": [1, 2, 4]}
"""

PROMPTS = (
    "Write a short paragraph about a lighthouse keeper.",
    "Write a Python function that merges two sorted lists.",
    "A train travels 210 km at 84 km per hour. How long does it take? Show the steps.",
    "List five things to take on a walk in the mountains.",
)
