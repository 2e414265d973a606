"""Live forecasts: offered load, the tick, what became of it, and the guard and bundle behind it."""
