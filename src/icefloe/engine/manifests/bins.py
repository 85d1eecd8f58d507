"""Manifests in the making: what they hold so far, and how more is put into them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from icefloe.engine.manifests.rooms import Rooms
from icefloe.format.ids import ManifestId


@dataclass(slots=True)
class Bin:
    """A manifest in the making."""

    members: list[int]
    weight: int
    source: ManifestId | None = None
    """The untouched manifest that this was before."""
    homes: Sequence[int] = ()
    """The sets where that fits as it is: this one, and those to be asked after it."""
    is_extended: bool = False

    @property
    def is_untouched(self) -> bool:
        """Whether this can stay the file that it is."""
        return self.source is not None and not self.is_extended

    def add(self, other: "Bin") -> None:
        """Put more arrays in."""
        self.members.extend(other.members)
        self.weight += other.weight
        self.is_extended = True


class FirstFit:
    """Manifests of one capacity, to each of which things are added as long as there is room."""

    def __init__(self, capacity: int, is_new: Sequence[bool], before: Sequence[Bin] = ()) -> None:
        self._capacity = capacity
        self._is_new = is_new
        self._untouched = [each for each in before if each.is_untouched]
        self._old_room = Rooms()
        for each in self._untouched:
            self._old_room.add(capacity - each.weight)
        self.opened: list[Bin] = []
        self._room = Rooms()
        for each in before:
            if not each.is_untouched:
                self._open(each)

    def all(self) -> list[Bin]:
        """List all manifests."""
        return [*self._untouched, *self.opened]

    def put_all(self, units: Iterable[Bin]) -> None:
        """Put each unit into the first manifest with room, or else into a new one.

        To those that could stay as they are, only what changed may be added.
        """
        for unit in units:
            if (place := self._room.take(unit.weight)) is not None:
                self.opened[place].add(unit)
            elif (
                any(self._is_new[each] for each in unit.members)
                and (place := self._old_room.take(unit.weight)) is not None
            ):
                self._untouched[place].add(unit)
            else:
                self._open(unit)

    def _open(self, unit: Bin) -> None:
        self._room.add(self._capacity - unit.weight)
        self.opened.append(unit)


def by_rank(bins: Iterable[Bin], ranks: Sequence[int]) -> list[Bin]:
    """Sort manifests by the first of their arrays."""
    return sorted(bins, key=lambda each: min(ranks[member] for member in each.members))


def ranks_of(keys: Sequence[int]) -> list[int]:
    """Say at which place each key is in their order."""
    ranks = [0] * len(keys)
    for rank, position in enumerate(sorted(range(len(keys)), key=keys.__getitem__)):
        ranks[position] = rank
    return ranks


def evened(arrays: Sequence[int], each: int, cardinality: int | None) -> list[int]:
    """Rearrange sorted arrays so that manifests of so many have similar sizes.

    The first is matched with the last, the second with the last but one, and so on; of those
    that there is room for, if that is limited.
    """
    count = len(arrays) if cardinality is None else min(each * cardinality, len(arrays))
    head, tail = arrays[:count], arrays[count:]
    half = (count + 1) // 2
    pairs = zip(head[:half], reversed(head), strict=False)
    return [*[one for pair in pairs for one in pair][:count], *tail]
