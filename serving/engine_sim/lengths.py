"""How long things are: prompts told from their text, outputs drawn, and text of a wanted length."""

import math
from collections.abc import Hashable, Sequence
from random import Random

CHARACTERS_PER_TOKEN = 4
_WORDS = (" the", " sea", " and", " its", " bay", " ebb", " tow", " low", " dry", " wet", " rim", " run")
"""Each is one token long."""


def text_tokens(text: str) -> int:
    """Tokens that a text is taken for: one for four characters, at least one.

    >>> text_tokens("close the gate"), text_tokens("")
    (4, 1)

    """
    return max(1, math.ceil(len(text) / CHARACTERS_PER_TOKEN))


def prefix_keys(prompt: str | Sequence[int], block_tokens: int) -> list[Hashable]:
    """A key for each full KV block of a prompt, text or token ids; equal prefixes have equal keys.

    >>> one, other = prefix_keys("a" * 130, 16), prefix_keys("a" * 64 + "b" * 64, 16)
    >>> len(one), one[0] == other[0], one[1] == other[1]
    (2, True, False)

    """
    size = block_tokens * (CHARACTERS_PER_TOKEN if isinstance(prompt, str) else 1)
    keys: list[Hashable] = []
    chain = 0
    for start in range(0, len(prompt) - size + 1, size):
        block = prompt[start : start + size]
        chain = hash((chain, block if isinstance(block, str) else tuple(block)))
        keys.append(chain)
    return keys


class OutputLengths:
    """Draws output lengths: log-normal, with a sigma of 1 around a mean; the same under the same seed.

    >>> lengths = OutputLengths(mean_tokens=256, seed=7)
    >>> [lengths.draw() for _ in range(4)]
    [120, 259, 124, 113]

    """

    def __init__(self, mean_tokens: float, seed: int) -> None:
        self._mu = math.log(mean_tokens) - 0.5
        self._random = Random(seed)

    def draw(self) -> int:
        """Output tokens of the next request, if nothing else ends it."""
        return max(1, round(math.exp(self._random.gauss(self._mu, 1.0))))


def words(start: int, end: int) -> str:
    """The output text from one token to another.

    >>> words(0, 3) + words(3, 5)
    ' the sea and its bay'

    """
    return "".join(_WORDS[place % len(_WORDS)] for place in range(start, end))
