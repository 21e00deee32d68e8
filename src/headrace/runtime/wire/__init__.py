"""What crosses a stage border. In come rows of frames, checked per edge and sender; out go rows of frames, filled by
operators and flushed by size or deadline. The way in: ``inbox`` → ``intake`` → ``inbound``; the way out: ``edges`` →
``outlet``; ``links`` joins stages of one leg. ``frames`` is the format, ``marks`` what separates intervals in a pipe,
``alignment`` holds what is behind a mark (``rowshelf`` on disk), ``counts`` is for the audit, ``channelmeter`` what is
measured on the way.
"""
