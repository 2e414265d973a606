"""Two gates under the same burst, before simulated engines: the rules alone, and rules + forecast."""
