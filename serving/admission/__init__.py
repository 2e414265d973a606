"""From a request that asks to be let in to its end: decided at once or in its turn, refused, settled."""
