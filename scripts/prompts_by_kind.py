"""Generates training prompts of eight kinds for `dflash-mlx train`, one JSON object per line.

    python scripts/prompts_by_kind.py 60 > prompts.jsonl

Templates are filled with words from prompts_by_kind.toml. No prompt is among the held-out prompts
of training or the benchmark prompts, which must stay unseen. Licence: CC0.
"""

import json
import random
import sys
import tomllib
from collections.abc import Callable
from itertools import islice
from pathlib import Path

Fill = Callable[[random.Random], str]

WORDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
LANGUAGES = ("Python", "Python", "Python", "JavaScript", "Java", "C")


def pick(rng: random.Random, what: str) -> str:
    """Return a random entry of a list in prompts_by_kind.toml."""
    chosen: str = rng.choice(WORDS[what])
    return chosen


def chat(rng: random.Random) -> str:
    """Return a question for advice or a conversation."""
    thing, place, name = pick(rng, "things"), pick(rng, "places"), pick(rng, "names")
    return rng.choice(
        (
            f"I will spend three days in {place}. What should I see?",
            f"My friend {name} is sad about a bad grade. What can I say?",
            f"Can you tell me something interesting about {pick(rng, 'subjects')}?",
            f"I cannot decide between {thing} and {pick(rng, 'things')}. What do you think?",
            f"Hello! I am {name} and I want to learn more about {pick(rng, 'subjects')}.",
            f"What is a good present for {name}, who likes {thing}?",
        )
    )


def code(rng: random.Random) -> str:
    """Return a programming task in one of several languages."""
    language, task = rng.choice(LANGUAGES), pick(rng, "tasks")
    return rng.choice(
        (
            f"Write a {language} function that {task}.",
            f"How do I write a function in {language} that {task}?",
            f"Show me {language} code that {task}, and explain it.",
        )
    )


def arithmetic(rng: random.Random) -> str:
    """Return an arithmetic problem."""
    a, b, c = rng.randint(3, 90), rng.randint(2, 12), rng.randint(2, 40)
    name = pick(rng, "names")
    return rng.choice(
        (
            f"What is {a} plus {c * b}? Show the steps.",
            f"{name} buys {b} books for {a} dollars each. How much does {name} pay?",
            f"A train travels {a} miles in {b} hours. What is its average speed?",
            f"What is {a} times {b}? Explain step by step.",
            f"There are {a * b} apples in {b} baskets. How many apples are in each basket?",
            f"{name} has {a + c} coins and loses {c}. How many coins are left?",
            f"A rectangle is {a} cm long and {b} cm wide. What is its area?",
        )
    )


def lists(rng: random.Random) -> str:
    """Return a request for a list of a given length."""
    count, things = rng.choice(("five", "six", "seven", "eight", "ten")), pick(rng, "things")
    return rng.choice(
        (f"List {count} {things}.", f"Give me {count} {things}.", f"Name {count} {things}, please.")
    )


def translation(rng: random.Random) -> str:
    """Return a translation task."""
    language = rng.choice(("French", "Spanish", "German", "Italian", "Portuguese"))
    return f"Translate into {language}: {pick(rng, 'sentences')}"


def summary(rng: random.Random) -> str:
    """Return a summarisation task."""
    ask = rng.choice(("Summarize", "Summarize in one sentence", "What is the main point of this"))
    return f"{ask}: {pick(rng, 'events')} {pick(rng, 'events')}"


def story(rng: random.Random) -> str:
    """Return a request for a story or a poem."""
    hero, place = pick(rng, "heroes"), pick(rng, "places")
    return rng.choice(
        (
            f"Write a short story about {hero}.",
            f"Tell me a story about {hero} in {place}.",
            f"Write a poem about {hero}.",
        )
    )


def explanation(rng: random.Random) -> str:
    """Return a request for an explanation."""
    subject = pick(rng, "subjects")
    return rng.choice(
        (
            f"Explain how {subject} work or come about, in simple words.",
            f"Why do people study {subject}?",
            f"What is the history of {subject}?",
            f"Explain the importance of {subject}.",
        )
    )


KINDS: tuple[Fill, ...] = (
    chat,
    code,
    arithmetic,
    lists,
    translation,
    summary,
    story,
    explanation,
)


def prompts(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Return `count` different prompts of each kind, in random order."""
    rng = random.Random(seed)
    made = []
    for kind in KINDS:
        distinct = dict.fromkeys(kind(rng) for _ in range(40 * count))
        made += [{"prompt": text, "kind": kind.__name__} for text in islice(distinct, count)]
    rng.shuffle(made)
    return made


def main() -> None:
    for row in prompts(int(sys.argv[1])):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
