"""Inverted index: for each word the lines it is in. Lists grow, so memory is bounded and long ones go to disk.

headrace run examples/inverted_index.py --mode batch
"""

from pathlib import Path

import headrace as hr

HERE = Path(__file__).parent
LINES = {line: number for number, line in enumerate((HERE / "data/mill.txt").read_text().splitlines(), 1)}


def words(record: hr.Record) -> list[hr.Record]:
    """A line's words, each once, with the number of the line."""
    found = {word.strip(".,;:!?'\"") for word in record["line"].lower().split()}
    return [{"word": word, "line": LINES[record["line"]]} for word in sorted(found)]


job = hr.Job("inverted-index")

(
    job.source("lines", hr.replay(HERE / "data/mill.txt", format="lines"))
    .flat_map(words, name="words", returns={"word": "string", "line": "int64"})
    .key_by("word")
    .window(hr.whole_input())
    .reduce(name="index", state=hr.keep(memory="100 KB"), lines=hr.collect_list("line"))
    .sink("out", hr.console(limit=10))
)

if __name__ == "__main__":
    hr.run(job, mode="batch")
