"""Categories and merchants as 32-bit codes, which compiled code and stored histories hold.

A name's code is its hash: the same in every process and for every model, unlike the numbers of a vocabulary. Among
100,000 names a pair of equal hashes is to be expected. So a set of known names gives the later one (in their order as
text) another code, and gives no unknown name the code of a known one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stream_ccsd.transaction import MAX_TEXT, text_hash

# Unknown names whose codes are remembered; beyond that, they are made anew.
_REMEMBERED = 65_536


class Codes:
    """Codes of known names, one each, and of all others.

    >>> codes = Codes.of(["fuel", "food"])
    >>> codes("fuel") == Codes.of(["fuel"])("fuel"), codes.names[codes("food")]
    (True, 'food')
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self.names = dict(names)
        self._known = {name: code for code, name in self.names.items()}
        self._others: dict[str, int] = {}

    @classmethod
    def of(cls, names: Iterable[str]) -> Codes:
        """Give each name a code of its own; the order they come in does not matter."""
        taken: dict[int, str] = {}
        for name in sorted(set(names)):
            taken[_free_code(name, taken)] = name
        return cls(taken)

    def __call__(self, name: str) -> int:
        """The code of a name, known or not."""
        code = self._known.get(name)
        if code is None:
            code = self._others.get(name)
        if code is None:
            code = _free_code(name, self.names)
            if len(name) <= MAX_TEXT:
                if len(self._others) >= _REMEMBERED:
                    self._others.clear()
                self._others[name] = code
        return code


def _free_code(name: str, taken: Mapping[int, str]) -> int:
    code = text_hash(name, 4)
    attempt = 0
    while code in taken:
        attempt += 1
        # No name holds a zero, so this cannot be the text of another one.
        code = text_hash(f"\0{attempt}\0{name}", 4)
    return code
