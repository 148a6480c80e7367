"""LIWE: letters into words, against plain loops; any word can be read."""

from pathlib import Path

import numpy as np
import pytest
import torch

from vse_demo import VSE, ModelConfig, TrainConfig
from vse_demo.encoders import LIWE, CharacterTokenizer, pad_tokens
from vse_demo.encoders.characters import LONGEST
from vse_demo.training import build_model, drop_words

SENTENCES = ["a red dog", "naïve", f"{'w' * 40} it's"]


def encoder() -> LIWE:
    torch.manual_seed(0)
    return LIWE(6, word_dim=5, letter_dim=3).double().eval()


def test_letters_are_codes_and_long_words_are_cut() -> None:
    (first, second, third) = CharacterTokenizer().encode(SENTENCES)
    assert first == [(97,), (114, 101, 100), (100, 111, 103)]
    assert second == [(110, 97, 128, 118, 101)]
    assert [len(word) for word in third] == [LONGEST, 4]


def test_word_vectors_are_its_layers_in_loops() -> None:
    model = encoder()
    tokens, _ = pad_tokens(CharacterTokenizer().encode(SENTENCES))
    found = model.word_vectors(tokens).detach().numpy()
    letters = model.letters.weight.detach().numpy()
    for row, sentence in enumerate(CharacterTokenizer().encode(SENTENCES)):
        for place, word in enumerate(sentence):
            state = np.zeros(3 * LONGEST)
            for number, code in enumerate(word):
                state[3 * number : 3 * number + 3] = letters[code]
            for depth, layer in enumerate(model.layers):
                direction = layer.parametrizations.weight.original1.detach().numpy()
                length = layer.parametrizations.weight.original0.detach().numpy()
                weight = np.stack(
                    [size * line / np.linalg.norm(line) for size, line in zip(length, direction, strict=True)]
                )
                state = weight @ state + layer.bias.detach().numpy()
                state = np.maximum(0, state) if depth < 2 else state
            np.testing.assert_allclose(found[row, place], state, atol=1e-10)


def test_padding_never_changes_the_features_of_words() -> None:
    model, sentences = encoder(), CharacterTokenizer().encode(SENTENCES)
    together = model(*pad_tokens(sentences))
    for row, sentence in enumerate(sentences):
        alone = model(*pad_tokens([sentence]))
        torch.testing.assert_close(together[row, : len(sentence)], alone[0], atol=1e-10, rtol=1e-8)


def test_a_saved_model_reads_any_word_as_before(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = ModelConfig(dim=8, vision="region", region_dim=6, text="liwe", word_dim=4)
    model = VSE(config, CharacterTokenizer()).eval()
    model.save_pretrained(tmp_path / "model")
    loaded = VSE.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(loaded.encode_texts(SENTENCES), model.encode_texts(SENTENCES))
    misspelt = loaded.encode_texts(["a red dgo", "a red zzz", "a red dog"])
    assert misspelt[0] @ misspelt[2] < 1  # not one unknown word like any other
    assert not torch.equal(misspelt[0], misspelt[1])


def test_masked_words_and_word_vectors() -> None:
    tokenizer = CharacterTokenizer()
    (sentence,) = tokenizer.encode(["one two three four five six"])
    dropped = drop_words(sentence, 0.9, tokenizer, np.random.default_rng(0))
    assert set(dropped) <= {*sentence, tokenizer.mask_token}
    model = ModelConfig(dim=8, vision="region", region_dim=6, text="liwe", word_dim=4)
    with pytest.raises(ValueError, match="makes words of letters: there are no word_vectors"):
        build_model(TrainConfig(model=model, word_vectors="vectors.txt"), ["a dog"])
