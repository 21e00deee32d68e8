"""The control channel between workers and driver.

Reports, tickets and epoch messages travel as msgpack over ZeroMQ with CURVE: encrypted, and only
holders of the run's client key get in. Nothing here is pickled. In come and out go plain dicts;
``spark`` and ``actuate`` give them meaning. Losing the channel never stops the data.
"""
