"""From summaries to decisions. In come a topology, constraints and reports; out come settings, and a
sentence for each change made or withheld. Pure: no Spark, no threads, no clock, no I/O.

*The thesis*: B. Lohrmann, Massively Parallel Stream Processing with Latency Guarantees, TU Berlin, 2016.
*HPDC'12*: Lohrmann, Warneke, Kao, Massively-Parallel Stream Processing under QoS Constraints with Nephele.
*The prototype*: the author's public nephele-streaming, for numbers that the texts leave open.
"""
