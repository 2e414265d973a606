"""Bins, load, burst events, ticks and feature windows: one definition, batch and online."""
