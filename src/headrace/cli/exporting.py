"""A table into a file, or onto standard output."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

import pyarrow as pa
import typer

_FORMATS = (".parquet", ".csv", ".jsonl")


def check_target(to: str) -> None:
    """A usage error if nothing can be written there."""
    if to != "-" and Path(to).suffix not in _FORMATS:
        raise typer.BadParameter(f"--to {to}: a file ends in {', '.join(_FORMATS)}; - prints JSON lines")
    if to != "-" and not Path(to).absolute().parent.is_dir():
        raise typer.BadParameter(f"--to {to}: there is no directory {Path(to).absolute().parent}")


def write_table(table: pa.Table, to: str) -> None:
    """Write all rows; a file that is there is replaced."""
    match Path(to).suffix:
        case ".parquet":
            from pyarrow import parquet

            parquet.write_table(table, to)
        case ".csv":
            from pyarrow import csv

            csv.write_csv(_flat(table), to)
        case ".jsonl":
            with Path(to).open("w", encoding="utf-8") as file:
                _write_lines(table, file)
        case _:
            _write_lines(table, sys.stdout)


def _write_lines(table: pa.Table, file: TextIO) -> None:
    from headrace.driver.inspection.storedrows import as_json

    for batch in table.to_batches(max_chunksize=1000):
        file.writelines(as_json(row) + "\n" for row in batch.to_pylist())


def _flat(table: pa.Table) -> pa.Table:
    """Lists and other nested values as JSON text, which is all that CSV has for them."""
    from headrace.driver.inspection.storedrows import as_json

    for at, field in enumerate(table.schema):
        if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
            texts = [None if value is None else as_json(value) for value in table.column(at).to_pylist()]
            table = table.set_column(at, field.name, pa.array(texts, pa.string()))
    return table
