"""Top words: the ten most frequent words of each category's last hundred documents, after every document.

What a document costs does not depend on how long the window is: its words are counted in, those of the document that
leaves are counted out, and the ranking is kept up to date from these changes alone.

headrace run examples/topk_words.py
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.bench.elasticity.documents import STOP_WORDS, Documents

WINDOW, K = 100, 10
Leaders = tuple[int, dict[str, int]]
"""A count, and all words that occur at least so often."""


def top_words(document: hr.Record, state: Any, out: Callable[[hr.Record], None]) -> None:
    """Count a document's words in, and those of the one that leaves the window out."""
    window = state["window"]
    changes = Counter(word for word in document["text"].split() if word not in STOP_WORDS)
    window.append(dict(changes))
    if len(window) > WINDOW:
        changes.subtract(window.popleft())
    leaders = kept(recounted(state["leaders"].get((1, {})), changes, state["counts"]), state["counts"])
    state["leaders"].set(leaders)
    top = ranked(leaders[1])[:K]
    words, counts = [word for word, _ in top], [n for _, n in top]
    out({"category": document["category"], "number": document["number"], "words": words, "counts": counts})


def recounted(leaders: Leaders, changes: Counter[str], counts: Any) -> Leaders:
    """The leaders after some changes, which go into the counts of all words."""
    least, words = leaders
    for word, change in changes.items():
        if not change:
            continue
        n = counts.get(word, 0) + change
        if n:
            counts.set(word, n)
        else:
            counts.delete(word)
        if n >= least:
            words[word] = n
        else:
            words.pop(word, None)
    return least, words


def kept(leaders: Leaders, counts: Any) -> Leaders:
    """Leaders that are at least K, if there are so many words, and not many more.

    All words are looked at only when the leaders have become too few, which takes many of them to fall behind.
    """
    least, words = leaders
    if len(words) < K and least > 1:
        words = dict(counts.items())
    elif len(words) <= 4 * K:
        return leaders
    nth = sorted(words.values(), reverse=True)[: 2 * K]
    least = nth[-1] if len(nth) == 2 * K else 1
    return least, {word: n for word, n in words.items() if n >= least}


def ranked(words: dict[str, int]) -> list[tuple[str, int]]:
    """The most frequent first; of equally frequent ones by the alphabet."""
    return sorted(words.items(), key=lambda word: (-word[1], word[0]))


def program(documents: hr.Source) -> hr.Job:
    """The job over some documents; those of a category have to come in order, from one partition."""
    job = hr.Job("topk-words")
    returns = {"category": "int64", "number": "int64", "words": pa.list_(pa.string()), "counts": pa.list_(pa.int64())}
    state = {"window": hr.queue(), "counts": hr.mapping(), "leaders": hr.value()}
    top = job.source("documents", documents).key_by("category")
    top.process(top_words, name="top", state=state, returns=returns).sink("out", hr.console(limit=10))
    return job


job = program(hr.generate(Documents(), total=2000, partitions=1))

if __name__ == "__main__":
    hr.run(job)
