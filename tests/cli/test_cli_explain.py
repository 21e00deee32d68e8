"""``headrace explain``, without Spark."""

from __future__ import annotations


def test_explain_draws_the_job_and_says_why(headrace, examples):
    done = headrace("explain", examples / "hot_topics.py")
    assert done.code == 0
    assert done.err == ""
    for telling in (
        "job hot-topics",
        "stage 0 × 2 subtasks",
        "shuffle by tag",
        "hot: reduce by tag over sliding 10 s every 1 s: n=count(), likes=sum(likes)  → trending",
        "tweets → hot: p99 ≤ 100 ms over 10 s",
        "4 task slots (2 + 2), held as long as the query runs",
        "A cut every 1 s",
        "spark.python.udf.pipelined.enabled = true",
        "results leave a worker while input still arrives",
    ):
        assert telling in done.out


def test_explain_as_json(headrace, app):
    done = headrace("explain", app(), "--json", "--parallelism", "3")
    assert done.code == 0
    plan = done.answer
    assert plan["ok"] is True
    assert (plan["job"], plan["mode"], plan["slots"]) == ("small", "realtime", 6)
    assert [stage["steps"] for stage in plan["stages"]] == [["numbers", "double"], ["sums", "out"]]
    assert [stage["shuffled"] for stage in plan["stages"]] == [False, True]
    steps = {step["step"]: step for step in plan["steps"]}
    assert steps["double"]["columns"] == {"key": "int64", "n": "int64", "at": "int64"}
    assert steps["sums"]["columns"] == {"key": "int64", "n": "int64", "total": "int64"}
    assert {"from": "double", "to": "sums", "stage": 1, "keys": ["key"]} in plan["edges"]
    assert plan["spark"] and all(setting["why"] for setting in plan["spark"])


def test_explain_says_what_panes_cost(headrace, examples):
    """C-MR's rule with both costs; the figures of a running job are in its journal."""
    done = headrace("explain", examples / "hot_topics.py")
    assert "hot: panes (to begin with; decided again from what each subtask receives)" in done.out
    assert "10 t values with an aggregate per window, 1 t + 7.2 d with panes of 1 s" in done.out
    (choice,) = headrace("explain", examples / "hot_topics.py", "--json").answer["panes"]
    assert (choice["step"], choice["form"], choice["pane_s"], choice["gamma"]) == ("hot", "panes", 1.0, 1.8)
    assert round(choice["pays_above"], 2) == 0.8


def test_settings_depend_on_the_mode(headrace, app):
    realtime = headrace("explain", app(), "--json").answer
    batch = headrace("explain", app(), "--json", "--mode", "batch").answer
    assert {"key": "spark.sql.adaptive.enabled", "value": "false"}.items() <= batch["spark"][2].items()
    assert realtime["spark"] != batch["spark"]


def test_a_job_is_chosen_by_name(headrace, app):
    path = app(
        """
        import headrace as hr

        def make(name):
            job = hr.Job(name)
            job.source("n", hr.generate(lambda n: {"n": n}, total=1)).sink("out", hr.console())
            return job

        one, two = make("first"), make("second")
        """
    )
    assert headrace("explain", f"{path}:two", "--json").answer["job"] == "second"


def test_explain_shows_what_jobs_share(headrace, app):
    path = app(
        """
        import headrace as hr

        def parse(record):
            return record

        def make(name, size):
            job = hr.Job(name)
            ticks = job.source("ticks", hr.generate(lambda n: {"k": n % 3, "t": n}, total=9), event_time="t")
            window = hr.sliding(size, every="1 min")
            counted = ticks.map(parse, name="parse").key_by("k").window(window).reduce(name="count", n=hr.count())
            counted.sink("out", hr.console())
            return job

        fast, slow = make("fast", "5 min"), make("slow", "10 min")
        """
    )
    done = headrace("explain", f"{path}:fast,slow")
    assert "fast.count.panes: panes of 60 s by k: count()  → fast.count, slow.count" in done.out
    assert "slow.parse: runs as fast.parse, which is the same" in done.out
    plan = headrace("explain", f"{path}:fast,slow", "--json").answer
    assert plan["job"] == "fast+slow"
    assert plan["shared"] == [
        {"step": "slow.ticks", "runs_as": "fast.ticks"},
        {"step": "slow.parse", "runs_as": "fast.parse"},
    ]
    assert headrace("explain", f"{path}:fast,other").code == 2


def test_main_of_an_app_does_not_run(headrace, app):
    path = app(
        """
        import headrace as hr

        job = hr.Job("guarded")
        job.source("n", hr.generate(lambda n: {"n": n}, total=1)).sink("out", hr.console())
        if __name__ == "__main__":
            raise SystemExit("ran as a script")
        """
    )
    assert headrace("explain", path).code == 0


def test_what_cannot_be_sent_to_workers_is_refused_by_step_and_variable(headrace, app):
    done = headrace(
        "explain",
        app(
            """
            import threading
            import headrace as hr

            lock = threading.Lock()

            def guarded(record):
                with lock:
                    return record

            job = hr.Job("locked")
            numbers = job.source("numbers", hr.generate(lambda n: {"n": n}, total=10))
            numbers.map(guarded, name="guard").sink("out", hr.jsonl("out"))
            """
        ),
    )
    assert done.code == 1
    assert "step 'guard': its function uses 'lock', a _thread.lock, which cannot be sent to workers" in done.err
