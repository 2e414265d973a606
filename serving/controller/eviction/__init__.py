"""KV-cache eviction by value density: which block may leave, and which should leave first.

A policy object that a cache embeds: it is told which blocks requests use and answers which should leave.
Pure in-memory Python, clock passed in, no I/O.
"""
