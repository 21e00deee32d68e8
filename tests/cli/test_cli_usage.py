"""Help, version, usage errors and exit codes."""

from __future__ import annotations

import pytest

from headrace.cli.experiments import EXPERIMENTS


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["run"],
        ["explain"],
        ["doctor"],
        ["demo"],
        ["bench"],
        ["state"],
        ["state", "ls"],
        ["state", "show"],
        ["state", "export"],
    ],
    ids=" ".join,
)
def test_every_command_has_help(headrace, command):
    done = headrace(*command, "--help")
    assert done.code == 0
    assert "Usage: headrace" in done.out
    assert done.err == ""


def test_version(command):
    from headrace import __version__

    done = command("--version")
    assert (done.code, done.out) == (0, f"headrace {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "telling"),
    [
        (["fly"], "No such command"),
        (["run"], "Missing argument"),
        (["run", "app.py", "--mode", "warp"], "warp"),
        (["run", "app.py", "--commit", "soon"], "not a duration"),
        (["run", "app.py", "--parallelism", "0"], "parallelism"),
        (["run", "app.py", "--executors", "4"], "the minimum and the maximum, such as 1:4"),
        (["run", "app.py", "--executors", "4:1"], "the minimum and the maximum, such as 1:4"),
        (["run", "app.py", "--mode", "batch", "--commit", "5 s"], "commit has no effect in batch mode"),
        (["run", "app.py", "--mode", "batch", "--observe-only"], "observe_only has no effect in batch mode"),
        (["run", "app.py", "--mode", "microbatch", "--executors", "1:4"], "executors has no effect in microbatch mode"),
        (["run", "app.py", "--mode", "microbatch", "--strict"], "--strict: constraints are kept in realtime mode only"),
        (["run", "app.py", "--standby"], "a standby needs the checkpoint"),
        (["run", "absent.py"], "no file absent.py"),
        (["explain", "app.py:other"], "no job named 'other'; it has job"),
        (["explain", "empty.py"], "must have one job"),
        (["explain", "two.py"], "it has one, two"),
        (["state", "ls", "."], "not the checkpoint of a Headrace job"),
        (["demo", "--keep", "."], "name a new directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_exit_code_2(headrace, app, arguments, telling):
    app()
    app("import headrace as hr\n", name="empty.py")
    app("import headrace as hr\none, two = hr.Job('one'), hr.Job('two')\n", name="two.py")
    done = headrace(*arguments)
    assert done.code == 2
    assert telling in " ".join(done.err.replace("│", " ").split())
    assert "Traceback" not in done.err


def test_a_failing_app_is_one_message_with_its_line(headrace, app):
    path = app("import headrace as hr\njob = hr.Job('x')\nprint(undefined)\n")
    done = headrace("explain", path, "--json")
    assert done.code == 1
    assert done.err.strip() == "error: app.py could not be loaded: NameError: name 'undefined' is not defined (line 3)"
    assert done.answer == {
        "ok": False,
        "error": "app.py could not be loaded: NameError: name 'undefined' is not defined (line 3)",
        "kind": "AppError",
    }


def test_traceback_on_demand(headrace, app):
    path = app("import headrace as hr\njob = hr.Job('x')\nprint(undefined)\n")
    done = headrace("explain", path, "--traceback")
    assert done.code == 1
    assert "Traceback (most recent call last)" in done.err
    assert "app.py" in done.err
    assert "NameError" in done.err


def test_a_syntax_error_names_its_line(headrace, app):
    done = headrace("explain", app("import headrace as hr\njob = hr.Job('x'\n"))
    assert done.code == 1
    assert "SyntaxError" in done.err
    assert "line 2" in done.err
    assert "Traceback" not in done.err


def test_an_illegal_job_fails_before_spark_starts(command, app):
    done = command("run", app("import headrace as hr\njob = hr.Job('x')\n"), "--json")
    assert done.code == 1
    assert done.answer["kind"] == "GraphError"
    assert "has no source" in done.err


def test_missing_java_is_one_sentence_with_the_fix(command, app):
    done = command("run", app(), "--json", JAVA_HOME="/nonexistent")
    assert done.code == 1
    assert done.answer["kind"] == "EnvironmentMissingError"
    _, error = done.err.splitlines()
    assert error.startswith("error: JAVA_HOME is /nonexistent, but there is no bin/java in it: install OpenJDK")


def test_benches_are_listed(headrace):
    done = headrace("bench", "--list")
    assert done.code == 0
    for name in EXPERIMENTS:
        assert name in done.out
