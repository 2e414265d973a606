"""Forecaster, baselines, guard and the bundle that serving loads."""
