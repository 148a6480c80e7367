"""Exercises on scale: merging shards, the size of a billion vectors, negatives without gathering."""

from collections.abc import Callable, Sequence

from vse_demo.teaching.checks import as_number, exercise, near, need, too

Hits = list[tuple[float, str]]


@exercise("11.1")
def merge_of_shards(merge: Callable[[list[Hits], int], Hits]) -> str:
    need(callable(merge), "merge should be a function of the parts and k.")
    parts = [[(0.2, "b"), (0.9, "a"), (0.8, "c")], [(0.85, "e"), (0.1, "f"), (0.7, "d")], [(0.3, "g")]]
    given = merge(parts, 3)
    need(given is not None and given is not ..., "the function returns nothing yet.")
    need(len(given) == 3, f"asked for 3 results, it gives {len(given)}.")
    need([score for score, _ in given] == sorted((score for score, _ in given), reverse=True), "best first, please.")
    need([name for _, name in given] == ["a", "e", "c"], "the three best of all are a, e and c.")
    one_sided = [[(0.9, "a"), (0.8, "b"), (0.7, "c")], [(0.1, "d")]]
    need(
        [name for _, name in merge(one_sided, 3)] == ["a", "b", "c"],
        "all of the best may lie in one shard: take k of each.",
    )
    need(len(merge([[(0.5, "a")]], 4)) == 1, "with fewer results than k, return those there are.")
    return "k of each shard are enough, and fewer are not."


@exercise("11.2")
def size_of_a_billion(gigabytes: float, shards: int) -> str:
    size, count = as_number(gigabytes, "the size"), as_number(shards, "the number of shards")
    need(not near(size, 2048), "four bytes are single precision; half precision has two.")
    need(not near(size, 1.024), "that is a million photos; a billion are a thousand times as many.")
    need(near(size, 1024), f"{size:g} GB is {too(size, 1024)}: photos, times numbers, times bytes of a number.")
    need(not near(count, 1e9 / 2**18, 1e-9) and count != 3814, "the last shard is not full, but it is one: round up.")
    need(count == 3815, f"{count:g} shards are {too(count, 3815)}: photos divided by those of a shard, rounded up.")
    return "A terabyte in 3,815 shards: more than the memory of one machine, not more than its disk."


@exercise("11.3")
def negatives_without_gathering(negatives: Callable[[int], int], same_for: Sequence[int]) -> str:
    need(callable(negatives), "negatives should be a function of p.")
    given = negatives(2)
    need(given is not None and given is not ..., "the function returns nothing yet.")
    need(given != 64, "one of the 64 photos is the right one.")
    need(given != 127, "without gathering a process sees only its own half.")
    need(
        [negatives(p) for p in (1, 2, 4, 128)] == [127, 63, 31, 0],
        "how many pairs has one of p processes, and how many of its photos are wrong for a caption?",
    )
    need(list(same_for) == [1], "with fewer photos the hardest is another one: only p = 1 is the same.")
    return "On 128 processes there would be none at all: gather."
