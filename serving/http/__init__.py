"""Around the routes: who may call, bounds, messages, errors, and what the service shows of itself."""
