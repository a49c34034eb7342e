"""The size of pieces of long work, by measured speed, so that the host regains control soon."""

TARGET_SECONDS = (
    4.0  # duration of a piece; a whole population is copied for each, so that shorter ones cost more
)
GROWTH = 4  # from one piece to the next, at most: the first ones are slow, or the speed is not known yet


class Pacer:
    """Chooses how many updates, or steps of an evaluation, a piece has."""

    def __init__(self, first: int = 1, target_seconds: float = TARGET_SECONDS):
        self._size, self._target_seconds = first, target_seconds

    def size(self, left: int) -> int:
        """Return the size of the next piece, of the `left` that there are."""
        return min(self._size, left)

    def measure(self, size: int, seconds: float) -> None:
        """Record the duration of a piece."""
        fitting = int(size * self._target_seconds / max(seconds, 1e-9))
        self._size = max(1, min(fitting, max(GROWTH * size, self._size)))
