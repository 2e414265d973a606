"""Predictor, controller, gateways and the HTTP service."""
