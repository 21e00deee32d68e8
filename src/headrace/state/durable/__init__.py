"""A checkpoint's way to storage and back. Out: ``changes`` (what changed in a slice) → ``chunks`` → ``segments`` → ``manifest``
(all slices at a cut) → ``versionlog`` (the cut has happened). Back: ``versionlog`` → ``loading``. ``compaction`` and
``garbage`` keep it small, ``storage`` is what all of it stands on.
"""
