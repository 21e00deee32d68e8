"""What a job will be like, before it runs. In come a plan and costs, assumed or measured on samples (``calibrate``); out
go predicted latencies, and the shares of a bound per step.
"""
