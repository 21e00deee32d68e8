"""Sessions: a user's visits, told apart by half an hour of silence, with a reducer of our own.

headrace run examples/sessions.py --mode batch
"""

from pathlib import Path

import headrace as hr

HERE = Path(__file__).parent

# The path through the site: pages in order of arrival, without repeats in a row. Sessions can merge
# when a late visit fills the silence between them, so combine is needed.
path = hr.reducer(
    init=list,
    update=lambda pages, visit: pages if pages[-1:] == [visit["page"]] else [*pages, visit["page"]],
    combine=lambda one, other: [*one, *other],
    finalize=" > ".join,
)

job = hr.Job("sessions")

visits = job.source("visits", hr.replay(HERE / "data/visits.csv"), event_time="at", lateness="10 min")

sessions = (
    visits.key_by("user")
    .window(hr.session_window("30 min"))
    .reduce(name="sessions", visits=hr.count(), seconds=hr.sum("seconds"), path=path)
)

sessions.sink("out", hr.console())

if __name__ == "__main__":
    hr.run(job, mode="batch")
