"""The ``headrace`` command.

In come arguments and a user's ``app.py``; out go text for people, and with ``--json`` one JSON object
as the last line of standard output. Sees everything and is imported by nothing.
"""
