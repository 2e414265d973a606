"""Gateways in front of the gate: what each asks, and what it can be told."""
