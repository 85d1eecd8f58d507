"""Find the first of many containers with enough room, in steps that grow with the logarithm."""


class Rooms:
    """The room left in containers, in their order.

    >>> rooms = Rooms()
    >>> rooms.add(5), rooms.add(9)
    (None, None)
    >>> rooms.take(6), rooms.take(4), rooms.take(4)
    (1, 0, None)
    """

    __slots__ = ("_count", "_leaves", "_most")

    def __init__(self) -> None:
        """Start without containers."""
        self._count = 0
        self._leaves = 1
        self._most = [-1, -1]
        """A binary tree from [1]: each node has the most room of any container below it."""

    def add(self, room: int) -> None:
        """Add a container after all others."""
        if self._count == self._leaves:
            self._grow()
        self._count += 1
        self._set(self._leaves + self._count - 1, room)

    def take(self, room: int) -> int | None:
        """Take room from the first container that has enough, and tell which; None if none has."""
        most = self._most
        if most[1] < room:
            return None
        node = 1
        while node < self._leaves:
            node *= 2
            if most[node] < room:
                node += 1
        self._set(node, most[node] - room)
        return node - self._leaves

    def _set(self, node: int, room: int) -> None:
        most = self._most
        most[node] = room
        while node > 1:
            node //= 2
            most[node] = max(most[2 * node], most[2 * node + 1])

    def _grow(self) -> None:
        rooms = self._most[self._leaves :]
        levels = [rooms + [-1] * self._leaves]
        while len(levels[-1]) > 1:
            below = levels[-1]
            levels.append([max(pair) for pair in zip(below[::2], below[1::2], strict=True)])
        self._most = [-1, *(each for level in reversed(levels) for each in level)]
        self._leaves *= 2
