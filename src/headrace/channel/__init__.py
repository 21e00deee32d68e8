"""The control channel between workers and driver.

In come and out go the messages of ``runtime.messages``; they travel as msgpack over ZeroMQ with CURVE: encrypted, and
only holders of the run's client key get in. Nothing here is pickled; anything else is refused, naming its kind.
Losing the channel never stops the data.
"""
