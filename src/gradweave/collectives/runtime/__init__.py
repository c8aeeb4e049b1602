"""Collectives on torch's process groups: one module per collective, and what they share.

`tree` flattens structures, `wire` turns values into messages that every backend carries, `pending` waits and finishes.
"""
