"""State beyond memory (SCALLA 2.4 to 2.6). In come rows that do not fit; they wait in disk buckets until what memory
and disk have of their keys is settled, bucket by bucket.
"""
