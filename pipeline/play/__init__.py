"""A trace played to an OpenAI endpoint as live load, and what its clients saw."""
