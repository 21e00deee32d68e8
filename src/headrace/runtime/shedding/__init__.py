"""What an overloaded reduce abandons to keep its deadlines (SCALLA 2.13). In come records with costs and deadlines; out
go those to process next, and counts of the others.
"""
