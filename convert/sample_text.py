"""The text that conversions are measured on, written for this project, and prompts of its kinds.

Prose, code, arithmetic, a list and three languages: what quantization spoils first differs.
"""

TEXT = '''\
The lighthouse keeper counted the ships every evening and wrote the number into a grey book. On \
clear days there were twenty or more; in November, when the fog lay on the water until noon, he \
was glad of two. Nobody had asked him for the numbers, and after thirty years he would have been \
surprised to find that anyone wanted them. Still, when the harbour office finally wrote to say \
that the records of the last century had been lost in a flood, he sent the books by post, all \
sixty of them, and kept only the pencil.

def merge(left: list[int], right: list[int]) -> list[int]:
    """Return the sorted union of two sorted lists."""
    merged = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            merged.append(left[i])
            i += 1
        else:
            merged.append(right[j])
            j += 1
    return merged + left[i:] + right[j:]

A train leaves at 9:40 and travels 210 kilometres at 84 kilometres per hour. 210 / 84 = 2.5, so \
the journey takes two and a half hours and the train arrives at 12:10. If it stops twice for six \
minutes, it arrives at 12:22.

To plant a tree:
1. Dig a hole twice as wide as the roots and no deeper than they are.
2. Loosen the soil at the sides, so that new roots find a way out.
3. Set the tree straight, fill the hole, and press the earth down with your foot.
4. Water it well, once a week in the first summer.

Die Katze schläft auf dem warmen Ofen, und draußen fällt der erste Schnee. Le boulanger ouvre sa \
boutique à six heures, et toute la rue sent le pain. El río baja crecido en primavera y nadie \
cruza el puente viejo.

{"name": "merge", "arguments": {"left": [1, 4, 9], "right": [2, 3, 10]}, "result": [1, 2, 3, 4, \
9, 10], "sorted": true, "seconds": 0.0004}
'''

PROMPTS = (
    "Write a short paragraph about a lighthouse keeper.",
    "Write a Python function that merges two sorted lists.",
    "A train travels 210 km at 84 km per hour. How long does it take? Show the steps.",
    "List five things to take on a walk in the mountains.",
)
