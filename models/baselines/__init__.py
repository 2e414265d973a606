"""What the forecaster must beat: simple scores on known load, load predictors of planners, boosted trees.

A score is higher where a burst seems nearer. Every contender gets the same guard and the same budget, so
only the order of its scores counts.
"""

from models.baselines.boosted import boost, lag_features
from models.baselines.known import KnownLoad, Score
from models.baselines.planners import PLANNERS
from models.baselines.simple import SIMPLE, ewma_slope, last_value, panic_ratio, seasonal_naive
from models.baselines.told import told_features

__all__ = [
    "PLANNERS",
    "SIMPLE",
    "KnownLoad",
    "Score",
    "boost",
    "ewma_slope",
    "lag_features",
    "last_value",
    "panic_ratio",
    "seasonal_naive",
    "told_features",
]
