"""The size of pieces follows the measured speed, and never exceeds what is left."""

from shoal.runs.train.pacing import GROWTH, Pacer


def test_pieces_grow_to_the_target_and_shrink_at_once():
    pacer, sizes, seconds_each = Pacer(target_seconds=1.0), [], 0.01
    for _ in range(6):
        sizes.append(pacer.size(1000))
        pacer.measure(sizes[-1], sizes[-1] * seconds_each)
    assert sizes == [1, GROWTH, GROWTH**2, GROWTH**3, 100, 100]
    pacer.measure(100, 10.0)  # ten times as slow
    assert pacer.size(1000) == 10


def test_what_is_left_is_the_limit_and_does_not_shrink_the_next_piece():
    pacer = Pacer(first=64, target_seconds=1.0)
    assert pacer.size(3) == 3
    pacer.measure(3, 0.001)
    assert pacer.size(1000) == 64


def test_a_piece_has_at_least_one_update():
    pacer = Pacer(target_seconds=1.0)
    pacer.measure(1, 100.0)
    assert pacer.size(5) == 1
    pacer.measure(1, 0.0)  # a clock that stands still
    assert pacer.size(5) == GROWTH
