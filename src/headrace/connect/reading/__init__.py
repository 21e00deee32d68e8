"""From bytes to records, for sources that read files or lines: positions that can be returned to, parsing of whole
blocks, salvage of those that are malformed.
"""
