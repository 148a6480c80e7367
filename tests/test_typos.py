import string
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vse_demo.data import misspell, with_typo, with_typos
from vse_demo.encoders import WordTokenizer

LETTERS = st.text("abcdeéößñ", min_size=1, max_size=12)
SEEDS = st.integers(0, 2**32)


def slips(word: str) -> set[str]:
    """All that one slip can make of a word."""
    swapped = {word[:at] + word[at + 1] + word[at] + word[at + 2 :] for at in range(len(word) - 1)}
    shorter = {word[:at] + word[at + 1 :] for at in range(len(word))} - {""}
    doubled = {word[:at] + 2 * word[at] + word[at + 1 :] for at in range(len(word))}
    replaced = {word[:at] + letter + word[at + 1 :] for at in range(len(word)) for letter in string.ascii_lowercase}
    return (swapped | shorter | doubled | replaced) - {word}


@given(LETTERS, SEEDS)
def test_a_typo_is_one_slip_away_from_its_word_and_never_the_word_itself(word, seed):
    assert misspell(word, np.random.default_rng(seed)) in slips(word)


def test_all_four_kinds_of_slips_happen():
    random = np.random.default_rng(0)
    lengths = Counter(len(misspell("beach", random)) for _ in range(400))
    assert set(lengths) == {4, 5, 6}
    assert lengths[5] > lengths[4] > 50  # swapped or replaced; left out
    assert lengths[6] > 50  # doubled
    assert misspell("aa", np.random.default_rng(0)) != "aa"


@given(st.lists(LETTERS | st.sampled_from(["a", "5", "12345", "o'clock", "(the", "snow_man", "犬"]), min_size=1), SEEDS)
def test_one_word_of_a_sentence_changes_if_any_is_long_enough(words, seed):
    sentence = " ".join(words) + "."
    typo = with_typo(sentence, np.random.default_rng(seed))
    parts = "".join(letter if letter.isalpha() else " " for letter in sentence).split()
    if max(map(len, parts), default=0) >= 4:
        assert typo in slips(sentence)
    else:
        assert typo == sentence
    assert typo.endswith(".")  # what is no letter stays
    assert sum(map(str.isdigit, typo)) == sum(map(str.isdigit, sentence))


def test_a_typo_changes_what_a_tokenizer_reads(picture_captions):
    captions = [caption for seed in range(20) for caption in picture_captions(seed)]
    for before, after in zip(captions, with_typos(captions, 1), strict=True):
        pairs = list(zip(WordTokenizer.split(before), WordTokenizer.split(after), strict=True))
        assert sum(one != other for one, other in pairs) == 1


def test_the_seed_decides_the_typos_and_none_are_none(picture_captions):
    captions = picture_captions(3)
    assert with_typos(captions, 2, seed=1) == with_typos(captions, 2, seed=1)
    assert with_typos(captions, 1, seed=1) != with_typos(captions, 1, seed=2)
    assert with_typos(captions, 0) == captions
    assert [with_typos([caption], 1)[0] for caption in ["at 5 pm", "", "??"]] == ["at 5 pm", "", "??"]


@pytest.mark.parametrize("word", ["a", "é", "犬"])
def test_words_of_one_letter_can_be_misspelt(word):
    random = np.random.default_rng(0)
    assert all(misspell(word, random) not in ("", word) for _ in range(50))
