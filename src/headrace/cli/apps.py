"""Load a user's ``app.py`` and find the job in it.

The module is named after its file, never ``__main__``, so that ``hr.run(job)`` under
``if __name__ == "__main__"`` does not run. Its functions, and those of modules beside it, travel to
Spark's workers by value: workers need not find the file.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import typer

from headrace.api.job import Job, Jobs
from headrace.errors import HeadraceError

_JOB_NAME = re.compile(r"(?P<path>.+):(?P<job>[A-Za-z_]\w*(,[A-Za-z_]\w*)*)")


class AppError(HeadraceError, ImportError):
    """A user's file could not be loaded."""


def load_job(app: str) -> Jobs:
    """The job that ``app.py`` or ``app.py:name`` means, or the jobs of ``app.py:name,other``.

    Raises typer.BadParameter if there is no such file or job, AppError if the file itself fails.
    """
    path, name = split_app(app)
    module = load_module(path)
    if name is not None:
        named = [_named(module, path, each) for each in name.split(",")]
        return named[0] if len(named) == 1 else named
    jobs = jobs_of(module)
    if len(jobs) != 1:
        raise typer.BadParameter(f"{path} must have one job, or say which: {path.name}:name; {_found(module)}")
    return next(iter(jobs.values()))


def _named(module: ModuleType, path: Path, name: str) -> Job:
    job = getattr(module, name, None)
    if not isinstance(job, Job):
        raise typer.BadParameter(f"{path} has no job named {name!r}; {_found(module)}")
    return job


def split_app(app: str) -> tuple[Path, str | None]:
    """File and job name of ``app.py[:job[,job…]]``. Raises typer.BadParameter if there is no such file."""
    match = _JOB_NAME.fullmatch(app)
    path, name = (Path(match["path"]), match["job"]) if match and not Path(app).exists() else (Path(app), None)
    if not path.is_file():
        raise typer.BadParameter(f"there is no file {path}")
    return path, name


def jobs_of(module: ModuleType) -> dict[str, Job]:
    """The jobs at module level by name, each once."""
    seen: dict[int, str] = {}
    for name, value in vars(module).items():
        if isinstance(value, Job):
            seen.setdefault(id(value), name)
    return {name: getattr(module, name) for name in seen.values()}


def load_module(path: Path) -> ModuleType:
    """Run a file as a module of its own, with its directory first on the path."""
    path = path.resolve()
    name = _module_name(path)
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise typer.BadParameter(f"{path} is not a Python file")
    module = module_from_spec(spec)
    before = set(sys.modules)
    sys.modules[name] = module
    _make_importable(path.parent)
    try:
        spec.loader.exec_module(module)
    except HeadraceError:
        raise
    except (Exception, SystemExit) as error:
        raise AppError(
            f"{path.name} could not be loaded: {type(error).__name__}: {error}{_line(error, path)}"
        ) from error
    _pickle_by_value(module, path.parent, before)
    return module


def _module_name(path: Path) -> str:
    """The file's name, unless a module of that name is loaded or would be hidden by it."""
    stem = re.sub(r"\W", "_", path.stem)
    return (
        f"headrace_app_{stem}" if stem in sys.modules or stem in sys.stdlib_module_names or stem[0].isdigit() else stem
    )


def _make_importable(directory: Path) -> None:
    """For this process, and for the workers of a local Spark, which inherit the environment."""
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    inherited = os.environ.get("PYTHONPATH", "")
    if str(directory) not in inherited.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [inherited, str(directory)]))


def _pickle_by_value(module: ModuleType, directory: Path, before: set[str]) -> None:
    from pyspark.cloudpickle import register_pickle_by_value

    register_pickle_by_value(module)
    for name in set(sys.modules) - before - {module.__name__}:
        other = sys.modules[name]
        file = getattr(other, "__file__", None)
        if file and Path(file).is_relative_to(directory) and "site-packages" not in Path(file).parts:
            register_pickle_by_value(other)


def _found(module: ModuleType) -> str:
    names = ", ".join(jobs_of(module))
    return f"it has {names}" if names else "it has none: write job = hr.Job('name') at the top level"


def _line(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError):
        return ""  # its message names the line
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f" (line {lines[-1]})" if lines else ""
