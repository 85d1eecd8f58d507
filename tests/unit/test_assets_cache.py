"""A cache holds what was used last, and never more bytes than it may."""

import random
from threading import Thread

from icefloe.assets import ByteCache


def test_gives_back_what_was_put() -> None:
    cache = ByteCache[str, int](10)
    cache.put("a", 1, 4)
    assert cache.get("a") == 1
    assert cache.get("b") is None


def test_what_was_used_least_recently_goes_first() -> None:
    cache = ByteCache[str, int](10)
    cache.put("a", 1, 4)
    cache.put("b", 2, 4)
    cache.get("a")
    cache.put("c", 3, 4)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)


def test_a_value_larger_than_the_cache_is_not_kept_and_pushes_nothing_out() -> None:
    cache = ByteCache[str, int](10)
    cache.put("a", 1, 4)
    cache.put("b", 2, 11)
    assert (cache.get("a"), cache.get("b")) == (1, None)


def test_a_cache_of_no_bytes_keeps_nothing() -> None:
    cache = ByteCache[str, int](0)
    cache.put("a", 1, 1)
    assert len(cache) == 0


def test_putting_again_replaces_value_and_size() -> None:
    cache = ByteCache[str, int](10)
    cache.put("a", 1, 8)
    cache.put("a", 2, 3)
    assert (cache.get("a"), cache.size_bytes) == (2, 3)


def test_discarding_frees_the_room() -> None:
    cache = ByteCache[str, int](10)
    cache.put("a", 1, 8)
    cache.discard("a")
    cache.discard("never there")
    assert (cache.get("a"), cache.size_bytes) == (None, 0)


def test_threads_never_exceed_the_limit() -> None:
    cache = ByteCache[int, int](100)
    seen = []

    def work(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(2000):
            key = draw.randrange(40)
            if cache.get(key) is None:
                cache.put(key, key, draw.randrange(1, 30))
            seen.append(cache.size_bytes)

    threads = [Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cache.put(1, 1, 100)
    assert cache.size_bytes == 100
    assert len(cache) == 1
