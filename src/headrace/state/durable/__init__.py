"""A checkpoint's way to disk and back. Out: ``changes`` (what an epoch changed in a slice) → ``chunks`` → ``segments`` →
``versions`` (manifests, the pick that commits). Back: ``versions`` → ``loading``. ``compaction`` keeps chains short.
"""
