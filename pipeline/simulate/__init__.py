"""What a forecast is worth to users: the same hours played to rules alone, with forecasts, with an oracle.

Everything runs on simulated time, open loop: requests come when the trace says, whatever became of those
before. `fleet` holds the engines, `calls` the clients, `run` the play, `arms` what each arm is told, `study`
the comparison.
"""
