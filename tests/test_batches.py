from collections import Counter

import numpy as np
import pytest
import torch

from vse_demo.data import open_dataset
from vse_demo.encoders import CachedFeatures, SubwordTokenizer, WordTokenizer
from vse_demo.model import VSE, ModelConfig
from vse_demo.training import (
    CaptionPairDataset,
    InputMaker,
    PairDataset,
    drop_features,
    drop_words,
    epoch_batches,
    hide_words,
)

EVEN = np.repeat(np.arange(12), 5)
UNEVEN = np.random.default_rng(0).permutation(np.repeat(np.arange(9), [5, 1, 5, 3, 2, 7, 5, 0, 4]))
WORDS = WordTokenizer([f"word{number}" for number in range(30)])


def batches_of(image_ids, batch_size=4, captions_per_image=2, seed=0):
    return epoch_batches(image_ids, batch_size, captions_per_image, np.random.default_rng(seed))


@pytest.mark.parametrize("image_ids", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("captions_per_image", [1, 2, 5, 10])
def test_all_groups_but_those_of_a_last_partial_batch_are_used_once(image_ids, captions_per_image):
    batches = batches_of(image_ids, 4, captions_per_image)
    used = [caption for batch in batches for caption in batch.captions]
    groups = sum(-(-count // captions_per_image) for count in Counter(image_ids.tolist()).values())
    assert len(used) == len(set(used))
    assert set(used) <= set(range(len(image_ids)))
    assert len(batches) == groups // 4
    assert len(used) >= len(image_ids) - captions_per_image * (groups % 4)


def test_every_caption_is_used_when_batches_come_out_even():
    batches = batches_of(EVEN, batch_size=4, captions_per_image=5)
    assert sorted(caption for batch in batches for caption in batch.captions) == list(range(60))


@pytest.mark.parametrize("image_ids", [EVEN, UNEVEN], ids=["even", "uneven"])
def test_captions_know_the_place_of_their_picture_in_the_batch(image_ids):
    for batch in batches_of(image_ids):
        assert len(set(batch.images)) == len(batch.images)
        assert [batch.images[place] for place in batch.image_ids] == image_ids[batch.captions].tolist()
        assert set(batch.image_ids.tolist()) == set(range(len(batch.images)))
        assert batch.image_ids.dtype == torch.int64


@pytest.mark.parametrize("captions_per_image", [1, 2, 5])
def test_a_batch_is_made_of_groups_of_captions_per_image(captions_per_image):
    image_ids = np.repeat(np.arange(30), 10)
    for batch in batches_of(image_ids, 6, captions_per_image):
        counts = Counter(image_ids[batch.captions].tolist())
        assert len(batch.captions) == 6 * captions_per_image
        assert all(count % captions_per_image == 0 for count in counts.values())


def test_each_epoch_groups_the_captions_of_a_picture_anew():
    random = np.random.default_rng(0)
    first, second = (epoch_batches(EVEN, 1, 2, random) for _ in range(2))  # a batch is one group
    assert {frozenset(batch.captions) for batch in first} != {frozenset(batch.captions) for batch in second}


def test_each_epoch_shuffles_the_pictures_anew():
    random = np.random.default_rng(0)
    first, second = ([batch.images for batch in epoch_batches(EVEN, 1, 5, random)] for _ in range(2))
    assert sorted(first) == sorted(second) == [[image] for image in range(12)]
    assert first != second


def test_the_seed_decides_the_batches():
    def plain(seed):
        return [(batch.images, batch.captions, batch.image_ids.tolist()) for batch in batches_of(UNEVEN, seed=seed)]

    assert plain(1) == plain(1)
    assert plain(1) != plain(2)


def test_fewer_groups_than_a_batch_are_one_smaller_batch():
    (batch,) = batches_of(EVEN[:15], batch_size=128, captions_per_image=5)
    assert sorted(batch.captions) == list(range(15))
    assert batch.images == [0, 1, 2]


# Words


def test_no_words_are_dropped_at_rate_zero():
    sentence = WORDS.encode(["word3 word1 zebra"])[0]
    assert drop_words(sentence, 0.0, WORDS, np.random.default_rng(0)) == sentence


def test_half_of_the_dropped_words_are_masked_and_the_rest_left_out():
    random = np.random.default_rng(0)
    sentence = list(range(2, 32))
    results = [drop_words(sentence, 0.4, WORDS, random) for _ in range(200)]
    masked = sum(result.count(WORDS.mask_token) for result in results) / 6000
    left_out = 1 - sum(map(len, results)) / 6000
    assert masked == pytest.approx(0.2, abs=0.02)
    assert left_out == pytest.approx(0.2, abs=0.02)
    for result in results:
        kept = [word for word in result if word != WORDS.mask_token]
        assert kept == sorted(kept)  # in their order
    assert sentence == list(range(2, 32))


@pytest.mark.parametrize("rate", [0.5, 0.9, 1.0])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_sentence_never_becomes_empty(rate, length):
    random = np.random.default_rng(0)
    for _ in range(100):
        assert 1 <= len(drop_words([7] * length, rate, WORDS, random)) <= length


def test_special_tokens_are_never_touched(bert_folder):
    tokenizer = SubwordTokenizer.from_pretrained(str(bert_folder))
    first, *words, last = tokenizer.encode(["the left side is red"])[0]
    random = np.random.default_rng(0)
    for _ in range(100):
        dropped = drop_words([first, *words, last], 0.9, tokenizer, random)
        assert (dropped[0], dropped[-1]) == (first, last)
        assert 1 <= len(dropped) - 2 <= len(words)
        assert set(dropped[1:-1]) <= {*words, tokenizer.mask_token}


def test_hidden_words_keep_their_ngrams():
    tokenizer = WordTokenizer([f"word{number}" for number in range(30)], ngram_buckets=500)
    [sentence] = tokenizer.encode([" ".join(tokenizer.words)])
    random = np.random.default_rng(0)
    results = [hide_words(sentence, 0.3, tokenizer, random) for _ in range(100)]
    assert all([token[1:] for token in result] == [token[1:] for token in sentence] for result in results)
    share = sum(token[0] == tokenizer.unknown for result in results for token in result) / 3000
    assert share == pytest.approx(0.3, abs=0.03)
    assert hide_words(sentence, 0.0, tokenizer, random) == sentence


def test_that_share_of_captions_is_misspelt_anew_in_each_step():
    captions = [f"word{number} yesterday" for number in range(20)]
    tokenizer = WordTokenizer([*WORDS.words, "yesterday"], ngram_buckets=500)
    data = CaptionPairDataset.make([[caption] for caption in captions], tokenizer)
    maker = InputMaker(tokenizer, 0.0, 0.0, 64, seed=0, typos=0.5)

    def misspelt(step):
        random = np.random.default_rng(step)
        shown = [maker.sentence(data, index, random) for index in range(20)]
        assert all(
            sum(a != b for a, b in zip(*pair, strict=True)) <= 1 for pair in zip(shown, data.sentences, strict=True)
        )
        return [index for index in range(20) if shown[index] != data.sentences[index]]

    assert misspelt(0) == misspelt(0) != misspelt(1)
    assert sum(len(misspelt(step)) for step in range(50)) / 1000 == pytest.approx(0.5, abs=0.05)


def test_typos_can_be_made_for_subwords(bert_folder):
    tokenizer = SubwordTokenizer.from_pretrained(str(bert_folder))
    data = CaptionPairDataset.make([["the left side is red"]], tokenizer)
    maker = InputMaker(tokenizer, 0.0, 0.0, 64, seed=0, typos=1.0, unknown_words=0.0)
    assert maker.sentence(data, 0, np.random.default_rng(0)) != data.sentences[0]


def test_without_typos_and_hidden_words_nothing_more_is_drawn():
    data = CaptionPairDataset.make([["word1 word2 word3 word4 word5"]], WORDS)
    random, other = np.random.default_rng(0), np.random.default_rng(0)
    shown = InputMaker(WORDS, 0.4, 0.0, 64, seed=0).sentence(data, 0, random)
    assert shown == drop_words(data.sentences[0], 0.4, WORDS, other)
    assert random.random() == other.random()  # so a run of an earlier version goes on as it would have


# Cells


@pytest.mark.parametrize(("rate", "kept"), [(0.0, 9), (0.2, 7), (0.5, 4), (0.99, 1), (1.0, 1)])
def test_dropping_cells_keeps_that_share_of_each_pictures_rows(rate, kept):
    cells = torch.rand(5, 9, 3)
    shown = drop_features(cells, rate, torch.Generator().manual_seed(0))
    assert shown.shape == (5, kept, 3)
    for before, after in zip(cells, shown, strict=True):
        rows = {tuple(row) for row in after.tolist()}
        assert len(rows) == kept  # none twice
        assert rows <= {tuple(row) for row in before.tolist()}


def test_pictures_lose_different_cells_and_the_seed_decides_which():
    cells = torch.arange(20.0).expand(6, 20).unsqueeze(-1)

    def chosen(seed):
        shown = drop_features(cells, 0.5, torch.Generator().manual_seed(seed))
        return [tuple(sorted(row)) for row in shown.squeeze(-1).tolist()]

    assert chosen(0) == chosen(0)
    assert chosen(0) != chosen(1)
    assert len(set(chosen(0))) == 6


# Pairs


def tiny_model(**settings) -> VSE:
    return VSE(ModelConfig(dim=8, word_dim=8, pooling="mean", **settings), WORDS)


def test_pairs_of_regions_are_read_from_their_file(precomp_folder):
    data = open_dataset(precomp_folder).split("dev")
    model = tiny_model(vision="region", region_dim=16)
    pairs = PairDataset.make(data, model.tokenizer, model.image_encoder)
    assert torch.equal(pairs.images[[2, 0]], torch.from_numpy(data.images[[2, 0]]))
    assert pairs.sentences == WORDS.encode(data.captions)
    assert pairs.image_ids is data.image_ids
    assert pairs.captions == data.captions


def test_pairs_of_pictures_are_cached_cells_or_the_files_themselves(karpathy_folder, tmp_path):
    data = open_dataset(karpathy_folder).split("val")
    model = tiny_model(backbone="test_efficientnet", image_size=64)
    parts = (model.tokenizer, model.image_encoder)
    assert PairDataset.make(data, *parts, live=True, cache=tmp_path / "cells").images == data.images
    assert not (tmp_path / "cells").exists()
    frozen = PairDataset.make(data, *parts, cache=tmp_path / "cells").images
    assert isinstance(frozen, CachedFeatures)
    assert frozen[[0, 1, 2, 3]].shape == (4, 4, 256)
