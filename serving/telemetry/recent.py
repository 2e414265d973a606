"""A bounded memory of names: what was seen lately is known, what is long ago is forgotten."""

from collections.abc import Iterable


class Recent:
    """Remembers the latest ``most`` names at least, and twice as many at most.

    >>> recent = Recent(2)
    >>> for name in "abcde":
    ...     recent.add(name)
    >>> [name in recent for name in "abcde"]
    [False, False, True, True, True]
    """

    def __init__(self, most: int, names: Iterable[str] = ()) -> None:
        self.most = most
        self._older: set[str] = set()
        self._newer: set[str] = set()
        for name in names:
            self.add(name)

    def __contains__(self, name: str) -> bool:
        return name in self._newer or name in self._older

    def __len__(self) -> int:
        return len(self._newer | self._older)

    def add(self, name: str) -> None:
        """Remember a name."""
        if len(self._newer) >= self.most:
            self._older, self._newer = self._newer, set()
        self._newer.add(name)

    def forget(self, names: Iterable[str]) -> None:
        """Forget names, known or not."""
        names = list(names)
        self._newer.difference_update(names)
        self._older.difference_update(names)
