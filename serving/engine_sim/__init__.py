"""A simulated engine: an OpenAI-compatible server that is timed by the engine model and needs no GPU."""
