"""Limits that several replicas hold together, through a Redis or Valkey server."""
