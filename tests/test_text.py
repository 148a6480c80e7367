import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from vse_demo.data import misspell
from vse_demo.encoders import (
    MAX_NGRAMS,
    MAX_TOKENS,
    BiGRU,
    SubwordTokenizer,
    TransformerText,
    WordTokenizer,
    character_ngrams,
    pad_tokens,
)
from vse_demo.encoders.bert import Bert
from vse_demo.model import VSE, ModelConfig
from vse_demo.utils.files import FileError

# Words


def test_the_vocabulary_starts_with_the_most_frequent_words():
    tokenizer = WordTokenizer.from_captions(["b a b", "C b a", "c d"], min_count=1)
    assert tokenizer.words == ["b", "a", "c", "d"]
    assert tokenizer.encode(["a b c d"]) == [[3, 2, 4, 5]]
    assert len(tokenizer) == 6


def test_words_below_min_count_are_unknown():
    tokenizer = WordTokenizer.from_captions(["b a b", "c b a", "c d"], min_count=2)
    assert tokenizer.words == ["b", "a", "c"]
    assert tokenizer.encode(["d zebra b"]) == [[1, 1, 2]]


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("The DOG, a dog!", ["the", "dog", "a", "dog"]),
        ("A man's o'clock isn’t 'quoted'", ["a", "man's", "o'clock", "isn't", "quoted"]),
        ("naïve Größe, 犬 и кот", ["naïve", "größe", "犬", "и", "кот"]),
        ("dogs 🐶🐶 run🏃fast", ["dogs", "run", "fast"]),
        ("a T-shirt no. 42", ["a", "t", "shirt", "no", "42"]),
        (" \t\n", []),
    ],
)
def test_words_are_lower_case_letters_digits_and_inner_apostrophes(sentence, words):
    assert WordTokenizer.split(sentence) == words


@pytest.mark.parametrize("sentence", ["🐶🐶", "?!", " ", ""])
def test_a_sentence_without_words_is_one_unknown_word(sentence):
    assert WordTokenizer(["dog"]).encode([sentence, "dog"]) == [[1], [2]]
    assert WordTokenizer(["dog"]).tokens(sentence) == [sentence]


def test_long_sentences_are_cut():
    tokenizer = WordTokenizer(["dog"])
    assert tokenizer.encode(["dog " * 200]) == [[2] * MAX_TOKENS]
    assert tokenizer.tokens("dog " * 200) == ["dog"] * MAX_TOKENS


def test_a_saved_vocabulary_encodes_the_same(tmp_path, picture_captions):
    captions = [caption for seed in range(8) for caption in picture_captions(seed)]
    tokenizer = WordTokenizer.from_captions([*captions, "naïve 犬"], min_count=1)
    tokenizer.save(tmp_path)
    loaded = WordTokenizer.load(tmp_path)
    assert loaded.words == tokenizer.words
    assert loaded.encode(captions) == tokenizer.encode(captions)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"dog": 2}', "must be a list of words"),
        ('["dog", 3]', "must be a list of words"),
        ('["dog"', "cannot be read as JSON"),
    ],
)
def test_a_bad_vocabulary_file_is_named(tmp_path, content, message):
    (tmp_path / "vocabulary.json").write_text(content)
    with pytest.raises(FileError, match=rf"vocabulary\.json {message}"):
        WordTokenizer.load(tmp_path)


def test_a_missing_vocabulary_file_is_named(tmp_path):
    with pytest.raises(FileError, match=r"vocabulary\.json is missing"):
        WordTokenizer.load(tmp_path)


def test_padding_is_zero_and_masked():
    tokens, mask = pad_tokens([[5, 6], [7], [8, 9, 0]])
    assert tokens.tolist() == [[5, 6, 0], [7, 0, 0], [8, 9, 0]]
    assert mask.tolist() == [[True, True, False], [True, False, False], [True, True, True]]
    assert tokens.dtype == torch.int64


# BiGRU

SENTENCES = [[2, 3, 4], [5], [6, 7, 8, 9, 2, 3, 1], [4, 4]]


@pytest.fixture
def bigru() -> BiGRU:
    torch.manual_seed(0)
    return BiGRU(vocabulary=10, dim=6, word_dim=5)


def one_way(gru: nn.GRU, suffix: str) -> nn.GRU:
    """A GRU with the weights of one direction of a bidirectional one."""
    single = nn.GRU(gru.input_size, gru.hidden_size)
    single.load_state_dict({name: gru.state_dict()[name + suffix] for name in single.state_dict()})
    return single


def test_bigru_is_two_plain_grus_per_sentence_averaged(bigru):
    forward, backward = one_way(bigru.gru, ""), one_way(bigru.gru, "_reverse")
    features = bigru(*pad_tokens(SENTENCES))
    for row, sentence in zip(features, SENTENCES, strict=True):
        words = bigru.embedding(torch.tensor(sentence))
        expected = (forward(words)[0] + backward(words.flip(0))[0].flip(0)) / 2
        torch.testing.assert_close(row[: len(sentence)], expected, rtol=0, atol=1e-6)


def test_bigru_does_not_see_padding_or_the_rest_of_the_batch(bigru):
    tokens, mask = pad_tokens(SENTENCES)
    features = bigru(tokens, mask)
    longer = nn.functional.pad(tokens, (0, 3), value=9), nn.functional.pad(mask, (0, 3))
    assert bigru(*longer).shape == (4, 10, 6)
    torch.testing.assert_close(bigru(*longer)[:, :7][mask], features[mask], rtol=0, atol=1e-6)
    for row, sentence in zip(features, SENTENCES, strict=True):
        torch.testing.assert_close(bigru(*pad_tokens([sentence]))[0], row[: len(sentence)], rtol=0, atol=1e-6)


def test_word_vectors_replace_those_of_known_words(bigru):
    tokenizer = WordTokenizer(["dog", "cat", "sun"])
    before = bigru.embedding.weight.detach().clone()
    random = np.random.default_rng(0)
    vectors = {"sun": random.normal(size=5) * 40, "dog": random.normal(size=5) * 40, "moon": np.ones(5)}
    assert bigru.load_word_vectors(tokenizer, vectors) == 2
    after = bigru.embedding.weight.detach()
    loaded, given = after[[2, 4]], torch.tensor(np.stack([vectors["dog"], vectors["sun"]])).float()
    torch.testing.assert_close(loaded / loaded.norm(), given / given.norm())  # a common scale
    torch.testing.assert_close(loaded.std(), before[1:].std())
    others = [0, 1, 3, 5, 6, 7, 8, 9]
    assert torch.equal(after[others], before[others])


def test_word_vectors_of_another_size_are_refused_and_none_are_fine(bigru):
    with pytest.raises(ValueError, match="word vectors have 7 dimensions, not 5"):
        bigru.load_word_vectors(WordTokenizer(["dog"]), {"dog": np.ones(7)})
    assert bigru.load_word_vectors(WordTokenizer(["dog"]), {"cat": np.ones(7)}) == 0


# Inside words

BUCKETS = 2000
COLOURS = ["red", "green", "blue", "yellow", "black", "white", "orange", "purple", "beach", "mountain", "football"]


@pytest.mark.parametrize("length", [1, 2, 5, 14, 15, 16, 31, 32, 33, 500])
def test_ngrams_are_all_pairs_then_triples_of_letters_cut_to_a_number(length):
    word = "".join(chr(ord("a") + at % 26) for at in range(length))
    marked = "<" + word + ">"
    pairs = [marked[at] + marked[at + 1] for at in range(length + 1)]
    triples = [marked[at] + marked[at + 1] + marked[at + 2] for at in range(length)]
    assert character_ngrams(word) == (pairs + triples)[:MAX_NGRAMS]


def test_ngrams_have_the_same_numbers_everywhere():
    tokenizer = WordTokenizer(["dog"], ngram_buckets=20000)
    assert tokenizer.encode(["dog ñu"]) == [
        [
            (2, 15042, 14198, 12237, 10869, 19245, 19166, 11653),
            (1, 8594, 5858, 17512, 16215, 19340),
        ]
    ]  # CRC-32 of the letters in UTF-8: a change would make every stored model misread


def test_without_ngrams_tokens_are_numbers_as_before():
    assert WordTokenizer(["dog"]).encode(["dog zebra"]) == [[2, 1]]
    assert WordTokenizer(["dog"]).hide(2) == 1


def test_known_unknown_and_masked_words_differ_in_what_is_left_of_them():
    tokenizer = WordTokenizer(["dog"], BUCKETS)
    [[dog, dgo, cat]] = tokenizer.encode(["dog dgo cat"])
    assert (dog[0], dgo[0], cat[0]) == (2, 1, 1)
    assert len({dog[1:], dgo[1:], cat[1:]}) == 3
    assert tokenizer.hide(dog) == (1, *dog[1:])
    assert tokenizer.mask_token == (1,)
    assert all(1 <= piece <= BUCKETS for token in (dog, dgo, cat) for piece in token[1:])


@pytest.mark.parametrize("sentence", ["🐶🐶", "?!", "", "\ud800", "犬が走る", "собака", "Größe", "x" * 10**6])
def test_any_sentence_has_ngrams(sentence):
    [tokens] = WordTokenizer(["dog"], BUCKETS).encode([sentence])
    assert [token[0] for token in tokens] == [1]
    assert 1 < len(tokens[0]) <= 1 + MAX_NGRAMS


def test_what_strangers_type_is_not_kept():
    tokenizer = WordTokenizer(["dog"], BUCKETS)
    tokenizer.encode(["dog " + " ".join(f"word{number}" for number in range(50))])
    assert list(tokenizer._known) == ["dog"]


@pytest.fixture
def inside() -> BiGRU:
    torch.manual_seed(0)
    return BiGRU(vocabulary=len(COLOURS) + 2, dim=6, word_dim=5, ngram_buckets=BUCKETS).double()


def test_a_word_is_its_vector_and_the_mean_of_those_of_its_ngrams(inside):
    sentences = [*WordTokenizer(COLOURS, BUCKETS).encode(["red gren field", "blue"]), [(1,), (3,)]]
    tokens, mask = pad_tokens(sentences)
    vectors = inside.word_vectors(tokens)
    for row, sentence in zip(vectors, sentences, strict=True):
        for vector, (number, *pieces) in zip(row, sentence, strict=False):
            expected = inside.embedding.weight[number].clone()
            for piece in pieces:
                expected = expected + inside.ngrams.weight[piece] / len(pieces)
            torch.testing.assert_close(vector, expected)
    assert inside(tokens, mask).shape == (3, 3, 6)


def test_neither_the_longest_sentence_nor_the_longest_word_of_a_batch_changes_features(inside):
    sentences = WordTokenizer(COLOURS, BUCKETS).encode(
        ["red", "a gren mountain", "blue football on the unforgettable beach"]
    )
    with torch.no_grad():
        inside.ngrams.weight[0] = torch.nan  # what lies at number 0 is never read
    tokens, mask = pad_tokens(sentences)
    features = inside(tokens, mask)
    for row, sentence in zip(features, sentences, strict=True):
        torch.testing.assert_close(inside(*pad_tokens([sentence]))[0], row[: len(sentence)])
    wider = nn.functional.pad(tokens, (0, 5, 0, 2)), nn.functional.pad(mask, (0, 2))
    torch.testing.assert_close(inside(*wider)[:, : mask.shape[1]][mask], features[mask])


def test_words_that_are_all_masked_are_encoded(inside):
    features = inside(*pad_tokens([[(1,), (1,)], [(1,)]]))
    assert features.shape == (2, 2, 6)
    assert features.isfinite().all()


def test_gradients_reach_the_ngrams_that_are_there_and_no_others(inside):
    [tokens] = WordTokenizer(COLOURS, BUCKETS).encode(["red"])
    inside(*pad_tokens([tokens])).sum().backward()
    assert inside.ngrams.weight.grad.abs().sum(1).nonzero().squeeze(1).tolist() == sorted(set(tokens[0][1:]))


def test_buckets_below_zero_are_refused():
    with pytest.raises(ValueError, match="ngram_buckets must be at least 0, not -5"):
        BiGRU(10, 6, ngram_buckets=-5)


def test_after_training_a_typo_is_nearer_to_its_word_than_another_word_is():
    """Words of a tiny set learn a direction each, now and then from their n-grams alone."""
    torch.manual_seed(0)
    tokenizer = WordTokenizer(COLOURS, BUCKETS)
    encoder = BiGRU(len(tokenizer), 16, 12, BUCKETS)
    words = [tokenizer.encode([word])[0] for word in COLOURS]
    hidden = [[tokenizer.hide(token) for token in word] for word in words]
    targets = torch.arange(len(COLOURS)).repeat(2)
    goal = nn.functional.normalize(torch.randn(len(COLOURS), 16), dim=1)
    optimizer = torch.optim.Adam(encoder.parameters(), 0.02)
    for _ in range(60):
        states = nn.functional.normalize(encoder(*pad_tokens(words + hidden))[:, 0], dim=1)
        loss = nn.functional.cross_entropy(states @ goal.T / 0.1, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    random, right, count = np.random.default_rng(0), 0, 0
    with torch.no_grad():
        known = nn.functional.normalize(encoder(*pad_tokens(words))[:, 0], dim=1)
        for number, word in enumerate(COLOURS):
            typos = tokenizer.encode([misspell(word, random) for _ in range(20)])
            near = nn.functional.normalize(encoder(*pad_tokens(typos))[:, 0], dim=1) @ known.T
            right, count = right + int((near.argmax(1) == number).sum()), count + 20
    assert right / count > 0.8  # by chance one in eleven


def test_a_saved_model_reads_words_as_before(tmp_path):
    torch.manual_seed(0)
    config = ModelConfig(dim=8, vision="region", region_dim=4, word_dim=6, ngram_buckets=BUCKETS)
    model = VSE(config, WordTokenizer(COLOURS, BUCKETS)).eval()
    model.save_pretrained(tmp_path / "model")
    loaded = VSE.from_pretrained(tmp_path / "model")
    sentences = ["red gren", "собака", "an orangutan"]
    assert torch.equal(loaded.encode_texts(sentences), model.encode_texts(sentences))
    vectors = loaded.encode_texts(["wrod", "xqz"])
    assert not torch.allclose(vectors[0], vectors[1])  # unknown words are not all alike
    (tmp_path / "model" / "SHA256SUMS").unlink()
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "ngram_buckets": BUCKETS + 1}))
    with pytest.raises(FileError, match=r"text_encoder\.ngrams\.weight is \(2001, 6\), not \(2002, 6\)"):
        VSE.from_pretrained(tmp_path / "model")


# Transformers


@pytest.fixture
def subwords(bert_folder) -> SubwordTokenizer:
    return SubwordTokenizer.from_pretrained(str(bert_folder))


@pytest.fixture
def bert(bert_folder) -> TransformerText:
    torch.manual_seed(1)
    encoder = TransformerText(TransformerText.read_config(str(bert_folder)), dim=6).eval()
    encoder.load_weights(str(bert_folder))
    return encoder


def test_subwords_have_special_tokens_around_them(subwords):
    assert subwords.tokens("The redo") == ["[CLS]", "the", "red", "##o", "[SEP]"]
    (numbers,) = subwords.encode(["The redo"])
    assert [subwords.tokenizer.id_to_token(number) for number in numbers] == subwords.tokens("The redo")
    assert subwords.special == {numbers[0], numbers[-1]}
    assert subwords.tokenizer.id_to_token(subwords.mask_token) == "[MASK]"
    assert len(subwords) == subwords.tokenizer.get_vocab_size()


def test_long_sentences_are_cut_inside_the_special_tokens(subwords):
    long, short = subwords.tokens("red " * 200), subwords.encode(["red", "red blue green"])
    assert len(long) == MAX_TOKENS
    assert (long[0], long[-1]) == ("[CLS]", "[SEP]")
    assert [len(sentence) for sentence in short] == [3, 5]  # not padded to the longest


def test_a_saved_subword_tokenizer_encodes_the_same(subwords, tmp_path, picture_captions):
    subwords.save(tmp_path)
    loaded = SubwordTokenizer.load(tmp_path)
    assert loaded.encode(picture_captions(3)) == subwords.encode(picture_captions(3))
    assert (loaded.special, loaded.mask_token, len(loaded)) == (subwords.special, subwords.mask_token, len(subwords))


def test_a_bad_tokenizer_file_is_named(tmp_path):
    with pytest.raises(FileError, match=r"tokenizer\.json cannot be read as a tokenizer"):
        SubwordTokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version"')
    with pytest.raises(FileError, match=r"tokenizer\.json cannot be read as a tokenizer"):
        SubwordTokenizer.load(tmp_path)


def test_a_missing_folder_is_named(tmp_path, bert):
    nowhere = str(tmp_path / "nowhere")
    with pytest.raises(FileError, match=r"no tokenizer in .*nowhere"):
        SubwordTokenizer.from_pretrained(nowhere)
    with pytest.raises(FileError, match=r"no transformers model in .*nowhere"):
        TransformerText.read_config(nowhere)
    with pytest.raises(FileError, match=r"no safetensors weights in .*nowhere"):
        bert.load_weights(nowhere)


def test_pretrained_weights_give_the_states_of_transformers(bert, bert_folder, subwords):
    from transformers import BertModel

    sentences = ["the red side", "something blue on the left", "red", *("and red" * n for n in range(1, 8))]
    tokens, mask = pad_tokens(subwords.encode(sentences))
    original = BertModel.from_pretrained(bert_folder).eval()
    states = original(input_ids=tokens, attention_mask=mask.long()).last_hidden_state
    torch.testing.assert_close(bert(tokens, mask)[mask], bert.projection(states, mask)[mask])
    assert isinstance(bert.backbone, Bert)
    assert set(bert.backbone.state_dict()) == {name for name in original.state_dict() if not name.startswith("pooler.")}


def test_a_plain_bert_is_trained_as_by_transformers(bert, bert_folder, subwords):
    from transformers import BertModel

    tokens, mask = pad_tokens(subwords.encode(["the red side", "something blue on the left"]))
    original = BertModel.from_pretrained(bert_folder).eval()
    original(input_ids=tokens, attention_mask=mask.long()).last_hidden_state[mask].square().sum().backward()
    bert.backbone(tokens, mask)[mask].square().sum().backward()
    theirs = dict(original.named_parameters())
    for name, parameter in bert.backbone.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("change", [{"hidden_act": "relu"}, {"model_type": "roberta"}, {"model_type": "distilbert"}])
def test_another_transformer_is_left_to_transformers(bert_folder, change):
    sizes = {"dim": 16, "n_heads": 2, "n_layers": 1, "hidden_dim": 32}  # as DistilBERT calls them
    config = TransformerText.read_config(str(bert_folder)) | sizes | change
    encoder = TransformerText(config, dim=6).eval()
    assert not isinstance(encoder.backbone, Bert)
    tokens, mask = pad_tokens([[2, 5, 6, 3], [2, 5, 3]])
    short = encoder(tokens[1:, :3], mask[1:, :3])
    torch.testing.assert_close(encoder(tokens, mask)[1:, :3], short, rtol=0, atol=1e-5)


def test_heads_that_do_not_divide_the_states_are_refused(bert_folder):
    config = TransformerText.read_config(str(bert_folder))
    with pytest.raises(ValueError, match="3 heads do not divide 16 states"):
        TransformerText({**config, "num_attention_heads": 3}, dim=6)


def test_a_transformer_does_not_see_padding_or_the_rest_of_the_batch(bert, subwords):
    sentences = subwords.encode(["red", "the left side is red and the right side is blue", "on the left"])
    tokens, mask = pad_tokens(sentences)
    features = bert(tokens, mask)
    longer = nn.functional.pad(tokens, (0, 5), value=9), nn.functional.pad(mask, (0, 5))
    torch.testing.assert_close(bert(*longer)[:, : tokens.shape[1]][mask], features[mask], rtol=0, atol=1e-5)
    for row, sentence in zip(features, sentences, strict=True):
        torch.testing.assert_close(bert(*pad_tokens([sentence]))[0], row[: len(sentence)], rtol=0, atol=1e-5)


def test_a_frozen_transformer_holds_fp16_matrices(bert):
    bert.freeze_backbone()
    matrices = [parameter for parameter in bert.backbone.parameters() if parameter.dim() >= 2]
    assert all(torch.equal(matrix, matrix.half().float()) for matrix in matrices)
    assert not any(parameter.requires_grad for parameter in bert.backbone.parameters())
    assert all(parameter.requires_grad for parameter in bert.projection.parameters())


def test_weights_that_can_run_code_are_not_read(bert, bert_folder, tmp_path):
    shutil.copy(bert_folder / "config.json", tmp_path)
    torch.save(bert.backbone.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(FileError, match="no safetensors weights"):
        bert.load_weights(str(tmp_path))


def test_truncated_transformer_weights_are_refused(bert, bert_folder, tmp_path):
    shutil.copytree(bert_folder, tmp_path, dirs_exist_ok=True)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(FileError, match="no safetensors weights"):
        bert.load_weights(str(tmp_path))


def test_foreign_transformer_weights_are_refused(bert, bert_folder, tmp_path):
    shutil.copytree(bert_folder, tmp_path, dirs_exist_ok=True)
    save_file({"foreign": torch.zeros(3)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(FileError, match=str(tmp_path)):
        bert.load_weights(str(tmp_path))


def test_a_transformer_stored_in_half_precision_computes_in_single(bert_folder):
    config = json.loads((bert_folder / "config.json").read_text())
    encoder = TransformerText({**config, "dtype": "float16"}, dim=6)
    assert encoder(*pad_tokens([[2, 5, 3]])).dtype == torch.float32
