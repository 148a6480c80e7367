# %% [markdown]
# # 3 · AdPool: learn the weights
#
# Lesson 2 ended with a choice: which rank counts how much? AdPool leaves that choice to training. It pools twice, once
# with learned weights for the ranks and once with a soft maximum, and it learns how to mix the two results.
#
# **You will learn** to compute the three steps of AdPool by hand; to read every weight from a `PoolTrace`; which ranks,
# words and image cells a trained model listens to; where the paper and the authors' code part; and how padding can
# leak into a vector.
#
# **Time**: 40 minutes; 25 for the core path, the sections marked *Level: core*. What is marked *deeper* can be skipped or
# read at home. **You need**: [lesson 2](02_pooling.ipynb), the softmax, a little PyTorch.

# %%
from collections import Counter, defaultdict

import matplotlib.pyplot as plt
import numpy as np
import torch
from IPython.display import display
from matplotlib_inline.backend_inline import set_matplotlib_formats

from vse_demo import AdPool, RankPool, plots
from vse_demo.encoders import pad_tokens
from vse_demo.shipped import gallery_photo, load_shipped
from vse_demo.teaching import check, quiz, reveal, sliders

set_matplotlib_formats("jpeg", pil_kwargs={"quality": 85, "subsampling": 0})  # photos take a fifth of PNG's room
_ = torch.set_grad_enabled(False)  # nothing is trained in this lesson

TOKEN, EMBEDDING, BOTH = plots.PALETTE[4], plots.PALETTE[5], plots.PALETTE[7]  # colours of the levels

# %% [markdown]
# ## The idea in one figure
#
# *Level: core.*
#
# The matrix is the one of lesson 2: four words, three dimensions. The upper path sorts and gives a weight to each
# *rank*. The lower path does not sort and gives a weight to each *number*. The last step mixes the two vectors.

# %%
features = np.array(
    [
        [1.0, 6.0, 2.0],  # "a"
        [9.0, 2.0, 1.0],  # "dog"
        [4.0, 5.0, 2.0],  # "is"
        [2.0, 3.0, 7.0],  # "running"
    ]
)
words, dimensions = ["a", "dog", "is", "running"], ["d1", "d2", "d3"]


def softmax(scores: np.ndarray) -> np.ndarray:
    """Positive weights that sum to 1 along the first axis."""
    exponentials = np.exp(scores - scores.max(axis=0))
    return exponentials / exponentials.sum(axis=0)


ranked = -np.sort(-features, axis=0)
token_vector = np.array([0.1, 0.1, 0.0])  # w, learned in training, chosen by us here
balance_vector = np.array([0.1, 0.0, 0.0])  # the same for the mix

rank_weights = softmax(ranked @ token_vector)  # (4,)
token_level = rank_weights @ ranked  # (3,)
value_weights = softmax(features)  # (4, 3)
embedding_level = (value_weights * features).sum(axis=0)  # (3,)
mix = softmax(np.array([token_level @ balance_vector, embedding_level @ balance_vector]))  # (2,)
pooled = mix[0] * token_level + mix[1] * embedding_level

# %% tags=["drawing"]
figure = plt.figure(figsize=(11.5, 4.6))
by_rank = [f"rank {r}  × {w:.2f}" for r, w in zip(range(1, 5), rank_weights)]
boxes = [  # left, bottom, width, height, values, names of the rows, digits, title
    (0.06, 0.30, 0.13, 0.40, features, words, 1, "features"),
    (0.34, 0.55, 0.13, 0.36, ranked, by_rank, 1, "sorted × rank weights"),
    (0.34, 0.05, 0.13, 0.36, value_weights, words, 2, "a weight for each number"),
    (0.60, 0.68, 0.13, 0.10, token_level[None], [f"× {mix[0]:.2f}"], 1, "token level"),
    (0.60, 0.18, 0.13, 0.10, embedding_level[None], [f"× {mix[1]:.2f}"], 1, "embedding level"),
    (0.84, 0.43, 0.13, 0.10, pooled[None], [], 1, "pooled: one vector"),
]
for *place, values, names, digits, title in boxes:
    ax = figure.add_axes(place)
    limits = (0, 1) if values is value_weights else (0, 9)  # weights on one scale, values on another
    plots.plot_matrix(values, names, dimensions, ax=ax, digits=digits, limits=limits)
    ax.set_title(title, fontsize=11)
for start, end in (
    ((0.20, 0.56), (0.24, 0.66)), ((0.20, 0.44), (0.275, 0.28)), ((0.48, 0.73), (0.55, 0.73)),
    ((0.48, 0.23), (0.55, 0.23)), ((0.74, 0.71), (0.83, 0.53)), ((0.74, 0.25), (0.83, 0.43)),
):  # fmt: skip
    plt.annotate("", end, start, "figure fraction", "figure fraction", {"arrowstyle": "-|>", "color": "#555555"})
plt.show()

# %% [markdown]
# ## By hand, step 1: the token level
#
# *Level: core.*
#
# Sort each column. Then score each sorted row $u_m$ with one learned vector $w$: the score is $u_m \cdot w$.

# %%
print("sorted:\n", ranked)
print("score of rank 1: 0.1 · 9 + 0.1 · 6 + 0 · 7 =", round(0.1 * 9 + 0.1 * 6 + 0 * 7, 2))
scores = ranked @ token_vector
print("scores of all ranks:", scores.round(2))

# %% [markdown]
# A softmax turns the scores into weights: take `exp`, then divide by the sum. All weights are above 0, and they sum
# to 1.

# %%
exponentials = np.exp(scores)
print("exp:    ", exponentials.round(2), " sum", exponentials.sum().round(2))
print("weights:", (exponentials / exponentials.sum()).round(2))
assert np.allclose(exponentials / exponentials.sum(), rank_weights)
print("token level:", token_level.round(2))

# %% [markdown]
# The last line is lesson 2 again: a weighted sum of ranks. New is only where the weights come from. They are computed
# from the *values*, so another sentence gets other weights from the same $w$.
#
# ## By hand, step 2: the embedding level
#
# *Level: core.*
#
# This level has no parameters and needs no sorting. Each column goes through a softmax of its own: a large number gets
# a large weight. Take d2, with the values 6, 2, 5 and 3:

# %%
column = np.exp([6.0, 2.0, 5.0, 3.0])
weights_of_d2 = column / column.sum()
print("weights in d2:", dict(zip(words, weights_of_d2.round(2).tolist())))
print("pooled d2:", (weights_of_d2 @ [6, 2, 5, 3]).round(2), "(the mean is 4, the maximum 6)")
assert np.allclose(weights_of_d2, value_weights[:, 1])
print("embedding level:", embedding_level.round(2))

# %% [markdown]
# The result lies between the mean and the maximum of each column, often close to the maximum. It is a *soft maximum*.

# %%
assert (features.mean(axis=0) < embedding_level).all()
assert (embedding_level < features.max(axis=0)).all()

# %% [markdown]
# ## By hand, step 3: the balance
#
# *Level: core.*
#
# Two vectors, and we want one. A second learned vector scores each of them, and a softmax of the two scores says how
# much of each we take.

# %%
print("token level     scores 0.1 ·", token_level[0].round(2), "=", (token_level @ balance_vector).round(2))
print("embedding level scores 0.1 ·", embedding_level[0].round(2), "=", (embedding_level @ balance_vector).round(2))
print("balance:", mix.round(2))
print("pooled: ", pooled.round(2))
assert np.isclose(mix.sum(), 1)

# %% [markdown]
# ## The same from the library
#
# *Level: core.*
#
# `AdPool` does all three steps for a batch, `(B, N, D) → (B, D)`. We give it our two vectors. With
# `return_trace=True` it also returns a `PoolTrace`: every weight on the way.

# %%
batch = torch.tensor(features).unsqueeze(0)  # (1, 4, 3)
pool = AdPool(dim=3, variant="paper").double()
pool.token_score.weight[:] = torch.tensor(token_vector)
pool.balance_score.weight[:] = torch.tensor(balance_vector)

result, trace = pool(batch, return_trace=True)
print("pooled:           ", result[0].numpy().round(2))
print("token weights:    ", trace.token_weights[0].numpy().round(2))
print("balance:          ", trace.balance[0].numpy().round(2))
assert np.allclose(result[0], pooled)
assert np.allclose(trace.sorted_values[0], ranked)
assert np.allclose(trace.token_weights[0], rank_weights)
assert np.allclose(trace.embedding_weights[0], value_weights)
assert np.allclose(trace.balance[0], mix)

# %% [markdown]
# ## Back to the words
#
# *Level: core.*
#
# A rank is not a word. To ask which *word* was heard, send each rank's weight back to the row that the number came
# from, then add the weight of the embedding level.

# %%
came_from = np.argsort(-features, axis=0, kind="stable")  # the row behind each sorted number
back = np.zeros_like(features)
np.put_along_axis(back, came_from, rank_weights[:, None], axis=0)
by_hand = mix[0] * back + mix[1] * value_weights

assert np.allclose(by_hand, trace.input_weights()[0])  # the library does the same
assert np.allclose(by_hand.sum(axis=0), 1)  # each dimension hands out a weight of 1
assert np.allclose((by_hand * features).sum(axis=0), pooled)  # and the sum is AdPool's output, exactly

# %%
share = by_hand.mean(axis=1)
ax = plots.plot_matrix(by_hand, [f"{w} ({s:.2f})" for w, s in zip(words, share)], dimensions, digits=2)
ax.set_title("weight of each number\n(mean of the row)", fontsize=11)
plt.show()
assert [words[row] for row in by_hand.argmax(axis=0)] == ["dog", "a", "running"]

# %% [markdown]
# *dog* leads in d1, *a* in d2, *running* in d3; *is* never leads. So sorting and softmax look complicated, yet in the
# end AdPool is a weighted sum of its input. Lesson 2's mean would give every word 0.25.
#
# ## Special cases
#
# *Level: deeper.*
#
# **Scores of zero give the mean.** If $w = 0$ all ranks have the same score, so the same weight.

# %%
flat = AdPool(3, variant="paper", embedding=False).double()
flat.token_score.weight[:] = 0
print("w = 0:", flat(batch)[0].numpy())
assert torch.allclose(flat(batch), RankPool()(batch))

# %% [markdown]
# **A large temperature factor gives the maximum.** Multiply the values by a factor before the softmax of the embedding
# level. The library has no such factor, but pooling `factor * features` and dividing by the factor is the same thing.

# %%
soft_maximum = AdPool(3, token=False)
for factor in (0.01, 0.3, 1, 3, 30):
    print(f"factor {factor:5}:", (soft_maximum(factor * batch) / factor)[0].numpy().round(2))
assert torch.allclose(soft_maximum(30 * batch) / 30, batch.amax(1))
assert torch.allclose(soft_maximum(1e-6 * batch) / 1e-6, batch.mean(1), atol=1e-4)

# %% [markdown]
# So the embedding level is not as fixed as it looks. It has no parameter, but the encoder before it can make its
# features larger or smaller, and that *is* the factor. **Guess first.** With a *negative* factor the embedding level
# goes towards (a) the mean, (b) the minimum, (c) zero.

# %% tags=["guess"]
my_guess = ...  # "a", "b" or "c"


# %% tags=["drawing"]
def token_pooled(factor: float) -> np.ndarray:
    return softmax(factor * ranked @ token_vector) @ ranked


def embedding_pooled(factor: float) -> np.ndarray:
    return (softmax(factor * features) * features).sum(axis=0)


figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", sharey=True)
for ax, curve, reach, colour in zip(axes, (token_pooled, embedding_pooled), (25, 4), (TOKEN, EMBEDDING)):
    factors = np.linspace(-reach, reach, 201)
    ax.plot(factors, [curve(factor)[1] for factor in factors], color=colour, lw=2.5)
    ax.plot([1], [curve(1)[1]], "o", color="black")
    ax.annotate("factor 1", (1, curve(1)[1]), (8, -14), textcoords="offset points")
    for height, name, side in ((6, "maximum", "left"), (4, "mean", "left"), (2, "minimum", "right")):
        ax.axhline(height, color="#BBBBBB", lw=1, zorder=0)
        ax.text(-reach if side == "left" else reach, height + 0.08, name, color="#666666", ha=side)
    ax.set_ylim(1.8, 6.4)
axes[0].set(title="token level", xlabel="factor on w", ylabel="pooled value of d2")
axes[1].set(title="embedding level", xlabel="factor on the features")
plt.show()
assert np.allclose(embedding_pooled(-30), features.min(axis=0))
reveal("3.1", my_guess)

# %% [markdown]
# With our $w$ both levels run from the minimum over the mean to the maximum. k-max with 1 < k < N is out of reach: it
# needs weights that are exactly 0, and a softmax never gives these. Move the sliders to see the weights behind the
# curves.


# %% tags=["drawing", "nbval-ignore-output"]
def show_token_weights(factor: float) -> None:
    weights = np.repeat(softmax(factor * ranked @ token_vector)[:, None], 3, 1)
    _, ax = plt.subplots(figsize=(4.4, 2.6), layout="constrained")
    plots.plot_matrix(weights, [f"rank {rank}" for rank in range(1, 5)], dimensions, ax, 2, (0, 1))
    ax.set_title("token level")


def show_embedding_weights(factor: float) -> None:
    _, ax = plt.subplots(figsize=(4.4, 2.6), layout="constrained")
    plots.plot_matrix(softmax(factor * features), words, dimensions, ax, 2, (0, 1))
    ax.set_title("embedding level")


display(sliders(show_token_weights, [1], factor=(-25, -10, -5, -2, -1, 0, 1, 2, 5, 10, 25)))
display(sliders(show_embedding_weights, [1], factor=(-4, -2, -1, -0.5, 0, 0.5, 1, 2, 4)))


# %% [markdown]
# ## Paper and code: two token levels
#
# *Level: deeper.*
#
# The authors published code as well, and its token level is another one than the paper's:
#
# | | score of a rank | weights | parameters |
# |---|---|---|---|
# | `variant="paper"` | $u_m \cdot w$, one number per sorted row | one per rank | $d$ |
# | `variant="official"` | $\mathrm{ReLU}(W u_m + b)$, one number per row *and dimension* | one per rank and dimension | $d^2 + d$ |
#
# Here are both on our matrix. In the official one we choose $W$ and $b$ so that d1 scores like the paper's, d2 scores 0
# and d3 scores the other way round: $1 - u_m \cdot w$.

# %%
official = AdPool(dim=3, variant="official").double()
w = torch.tensor(token_vector)
official.token_score.weight[:] = torch.stack([w, torch.zeros(3), -w])
official.token_score.bias[:] = torch.tensor([0.0, 0.0, 1.0])
_, official_trace = official(batch, return_trace=True)

# %% tags=["drawing"]
figure, axes = plt.subplots(1, 2, figsize=(8, 2.8), layout="constrained", sharey=True)
ranks = [f"rank {rank}" for rank in range(1, 5)]
plots.plot_matrix(trace.token_weights[0][:, None].expand(4, 3), ranks, dimensions, axes[0], 2, (0, 1))
plots.plot_matrix(official_trace.token_weights[0], ranks, dimensions, axes[1], 2, (0, 1))
axes[0].set_title("paper: all columns alike")
axes[1].set_title("official: a column per dimension")
plt.show()

# %% [markdown]
# In d1 both agree. d2 is a mean. d3 prefers *small* values. There the ReLU shows too: rank 1 would score 1 − 1.5 =
# −0.5, and ReLU makes that 0.

# %%
print("scores of d3:", official.token_scores(trace.sorted_values)[0, :, 2].numpy().round(2))
assert torch.allclose(official_trace.token_weights[0, :, 0], trace.token_weights[0])
assert torch.allclose(official_trace.token_weights[0, :, 1], torch.tensor(1 / 4).double())
assert official_trace.token_weights[0, 0, 2] == official_trace.token_weights[0, :, 2].min()

# %% [markdown]
# Is the official level more general? Yes. A softmax does not change when all scores grow by the same number, so a large
# bias lifts every score out of the ReLU's reach. Then rows of $W$ that all equal $w$ give the paper's token level, and
# $W = I$ gives the *embedding* level.

# %%
lifted = AdPool(dim=3, variant="official", embedding=False).double()
lifted.token_score.bias[:] = 100

lifted.token_score.weight[:] = w.expand(3, 3)
assert np.allclose(lifted(batch)[0], token_level)

lifted.token_score.weight[:] = torch.eye(3)
assert np.allclose(lifted(batch)[0], embedding_level)

# %% [markdown]
# That freedom has a price. The paper says that AdPool adds few parameters; count them:

# %%
counts = {
    (dim, variant): sum(parameter.numel() for parameter in AdPool(dim, variant=variant).parameters())
    for dim in (512, 1024)
    for variant in ("paper", "official")
}
for (dim, variant), count in counts.items():
    print(f"d = {dim:4}, {variant:8}: {count:9,} parameters, of these {dim} for the balance")
    assert count - dim == (dim if variant == "paper" else dim * dim + dim)

# %% [markdown]
# (The authors' code also has a bias in the balance. It adds the same number to both scores and cancels, so the library
# leaves it out.)
#
# ## What a trained model has learned: ranks
#
# *Level: core.*
#
# Now the trained model. It uses the official variant, one AdPool for cells and one for words. We pool twelve photos,
# and captions of the most common length, and average the weights over all 512 dimensions. Weights are shown as a
# **multiple of what the mean would give**: 1 is the mean, 2 is twice as much.

# %%
gallery = load_shipped("grid-minilm")
model = gallery.model
print("image:", model.image_pooling.variant, "· text:", model.text_pooling.variant)


def encode_words(sentences: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """The features (B, N, D) of all tokens, and their mask."""
    tokens, mask = pad_tokens(model.tokenizer.encode(sentences))
    return model.text_encoder(tokens, mask), mask


def encode_photos(names: list[str]) -> torch.Tensor:
    grid_features = model.read_image_features([gallery_photo(name) for name in names])
    return model.image_encoder(grid_features, torch.ones(grid_features.shape[:2], dtype=torch.bool))


captions = gallery.captions[::2]
lengths = [len(numbers) for numbers in model.tokenizer.encode(captions)]
common = Counter(lengths).most_common(1)[0][0]
same_length = [caption for caption, length in zip(captions, lengths) if length == common][:60]

_, text_trace = model.text_pooling(*encode_words(same_length), return_trace=True)
_, image_trace = model.image_pooling(encode_photos(gallery.names[::23]), return_trace=True)


# %%
def rank_curves(trace) -> dict[str, torch.Tensor]:
    """The mean weight of each rank, as a multiple of the mean's."""
    rows = trace.order.shape[1]
    levels = {
        "token level": trace.token_weights,
        "embedding level": trace.embedding_weights.gather(1, trace.order),
        "both, balanced": trace.input_weights().gather(1, trace.order),
    }
    return {name: weights.mean((0, 2)) * rows for name, weights in levels.items()}


curves_of = {"words of a caption": rank_curves(text_trace), "cells of a photo": rank_curves(image_trace)}
for name, curves in curves_of.items():
    assert all(abs(float(curve.mean()) - 1) < 1e-3 for curve in curves.values())
    assert (curves["embedding level"].diff() <= 1e-6).all()
    ends = [float(curves["token level"][rank]) for rank in (0, len(curves["token level"]) // 2, -1)]
    print(
        f"{name}: token level at the largest value {ends[0]:.1f}, in the middle {ends[1]:.1f}, at the smallest {ends[2]:.1f}"
    )

# %% tags=["drawing"]
figure, axes = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
for ax, (name, curves) in zip(axes, curves_of.items()):
    plots.plot_rank_weights(curves, ax=ax, colours=(TOKEN, EMBEDDING, BOTH))
    ax.axhline(1, color="black", lw=1, ls="--")
    ax.set(title=name, ylabel="weight (1 = mean pooling)")
plt.show()

# %% [markdown]
# The dashed line is mean pooling. The embedding level must fall from left to right, since a softmax likes large values.
# The token level is free: look at *both* ends of its curve. A feature can say something by being very large or by being
# very small; where the curve rises at its right end, the model listens to the small ones as well. Max pooling cannot.
#
# An average over dimensions hides how much they differ. Here is each dimension of the token level as a row of colour.

# %% tags=["drawing"]
figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
for ax, name, traced in zip(axes, ("words of a caption", "cells of a photo"), (text_trace, image_trace)):
    weights = traced.token_weights.mean(0).T * traced.order.shape[1]  # (D, ranks)
    weights = weights[(weights[:, 0] - weights[:, -1]).argsort(descending=True)]
    last = weights.shape[1] + 0.5
    shown = ax.imshow(weights, aspect="auto", cmap="PiYG", vmin=0, vmax=2, extent=(0.5, last, len(weights), 0))
    ax.set(title=name, xlabel="rank (1 = largest value)", ylabel="dimensions, sorted")
figure.colorbar(shown, ax=axes, label="token weight (1 = mean pooling)")
plt.show()

# %%
for traced in (text_trace, image_trace):
    ends = traced.token_weights.mean(0)[[0, -1]]  # (2, D): the first and the last rank
    prefer_large = float((ends[0] > ends[1]).float().mean())
    print(f"dimensions that prefer their largest value to their smallest: {prefer_large:.0%}")
    assert 0.1 < prefer_large < 0.9  # both kinds of dimensions are common

# %% [markdown]
# Green is more than the mean gives, pink is less. The dimensions at the top prefer their largest values, those at the
# bottom their smallest. One weight per rank for all dimensions, as in the paper, could not do that.
#
# ## The balance depends on the input
#
# *Level: deeper.*
#
# Every photo and every caption gets its own mix. To the right the token level counts more, to the left the soft
# maximum. **Guess first.** This model has come to rely on (a) the token level, (b) the soft maximum, (c) one for photos
# and the other for captions.

# %% tags=["guess"]
my_guess = ...  # "a", "b" or "c"

# %% tags=["drawing"]
figure, ax = plt.subplots(figsize=(7, 2.2), layout="constrained")
jitter = np.random.default_rng(0)
for row, (traced, colour) in enumerate(((image_trace, plots.IMAGE), (text_trace, plots.TEXT))):
    token_share = traced.balance[:, 0]
    ax.plot(token_share, row + jitter.uniform(-0.2, 0.2, len(token_share)), "o", color=colour, alpha=0.6)
ax.axvline(0.5, color="black", lw=1, ls="--")
ax.set(xlim=(0, 1.02), ylim=(1.5, -0.5), xlabel="weight of the token level (the rest goes to the soft maximum)")
ax.set_yticks([0, 1], ["photos", "captions"])
plt.show()

# %%
assert all(torch.allclose(traced.balance.sum(1), torch.tensor(1.0)) for traced in (image_trace, text_trace))
token_wins = [float(traced.balance[:, 0].mean()) > 0.5 for traced in (image_trace, text_trace)]
seen = "a" if all(token_wins) else "b" if not any(token_wins) else "c"
shares = [f"{float(traced.balance[:, 0].mean()):.0%}" for traced in (image_trace, text_trace)]
reveal(
    seen, my_guess, f"The token level has {shares[0]} of the weight in photos and {shares[1]} in captions, on average."
)

# %% [markdown]
# Compare with what the small runs of [lesson 7](07_evaluation.ipynb) find: take the token level away and retrieval
# suffers, take the embedding level away and no difference can be measured.
#
# ## Which words carry weight?
#
# *Level: core.*
#
# `trace.input_weights()` sends all weights back to the rows. A row earns weight by standing out: by holding, in many
# dimensions, the values that the model listens to. Bars show how far a token is above or below the share that the mean
# would give it. The model reads subwords (`##` marks the rest of a word) and puts `[CLS]` and
# `[SEP]` around each sentence; these are rows like all others.


# %%
def extra_weight(weights: torch.Tensor) -> torch.Tensor:
    """Of each row (N, D) -> (N,), in percent of what the mean gives."""
    return 100 * (weights.mean(-1) * len(weights) - 1)


sentence = gallery.captions[1]
_, one_trace = model.text_pooling(*encode_words([sentence]), return_trace=True)
weights = one_trace.input_weights()[0]
assert torch.allclose(weights.sum(0), torch.ones(weights.shape[1]), atol=1e-4)
ax = plots.plot_word_parts(model.tokenizer.tokens(sentence), extra_weight(weights), helps_or_hurts=False)
ax.set(title=f"“{sentence}”", xlabel="weight, compared with the mean (%)")
ax.title.set_fontsize(10)
plt.show()

# %% [markdown]
# One sentence is an anecdote. So we take all words that occur at least eight times in several hundred captions. And we
# add a **control**: an AdPool whose weights are random, on the very same features. It has learned nothing.
#
# **Guess first.** How does the untrained AdPool order the words? (a) Almost as the trained one does, (b) in an order that
# has nothing to do with it, (c) the other way round.

# %% tags=["guess"]
my_guess = ...  # "a", "b" or "c"

# %%
torch.manual_seed(0)
untrained = AdPool(model.dim, variant=model.text_pooling.variant)
poolings = {"trained": model.text_pooling, "untrained": untrained}
found = {name: defaultdict(list) for name in poolings}
for start in range(0, len(captions), 115):
    part = captions[start : start + 115]
    features_of_words, mask = encode_words(part)
    for name, pooling in poolings.items():
        _, traced = pooling(features_of_words, mask, return_trace=True)
        for caption, weights, real in zip(part, traced.input_weights(), mask):
            tokens = model.tokenizer.tokens(caption)
            for token, following, extra in zip(tokens, tokens[1:], extra_weight(weights[real]).tolist()):
                if token.isalpha() and token != "s" and not following.startswith("##"):  # nor the s of ’s
                    found[name][token].append(extra)

average = {
    name: {word: np.mean(extras) for word, extras in words_found.items() if len(extras) >= 8}
    for name, words_found in found.items()
}

# %% tags=["drawing"]
ordered = sorted(average["trained"], key=average["trained"].get, reverse=True)
shown = [*ordered[:8], "⋮", *ordered[-8:]]
figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained", width_ratios=(1, 1.1))
plots.plot_word_parts(shown, [average["trained"].get(word, 0) for word in shown], ax=axes[0], helps_or_hurts=False)
axes[0].set(title="trained: the first and the last eight words", xlabel="weight, compared with the mean (%)")
both = np.array([[average[name][word] for name in ("untrained", "trained")] for word in ordered])
axes[1].plot(*both.T, "o", ms=4, color=plots.TEXT)
corners = (0.3, 0.95), (0.3, 0.87), (0.3, 0.79), (0.6, 0.05)  # a rising cloud leaves them free
for word, place in zip((*ordered[:3], ordered[-1]), corners):
    axes[1].annotate(
        word, (average["untrained"][word], average["trained"][word]), place, textcoords="axes fraction", va="center",
        arrowprops={"arrowstyle": "-", "color": "#555555", "lw": 0.8, "shrinkB": 2},
    )  # fmt: skip
axes[1].set(xlabel="untrained AdPool (%)", ylabel="trained AdPool (%)", title="a dot is a word")
plt.show()

# %%
correlation = float(np.corrcoef(both.T)[0, 1])
stretch = float(both[:, 1].std() / both[:, 0].std())
print(
    f"{len(ordered)} words; correlation of trained and untrained {correlation:.2f}; spread {stretch:.1f} times as large"
)
small_words = [100 + average["trained"][word] for word in ("a", "the", "of", "and") if word in average["trained"]]
print(f"a, the, of and and keep {np.mean(small_words):.0f} % of the weight that the mean would give them")
assert correlation > 0.5 and stretch > 2 and 80 < np.mean(small_words) < 95
seen = "a" if correlation > 0.7 else "c" if correlation < -0.7 else "b"
reveal(seen, my_guess, "What stands out, stands out in the encoder's features, before AdPool has learned anything.")

# %% [markdown]
# On top are mostly things that one could point at, at the bottom mostly the small words of grammar. It would be a nice
# story that *AdPool learned* to hear them. The control tells it differently: an AdPool with random weights orders the
# words much alike, because the **encoder** (which was trained too) already gives words with content larger and smaller
# values, and every AdPool listens to large values. Training did change something: the spread is more than twice as large,
# so the order that was there has been **stretched**. And mind the scale: the small words keep almost nine tenths of the
# weight that the mean would give them. They are heard; they are heard a little less. A weight is a share of the say, not yet a part of a
# score: what a word adds to a match also depends on what its features hold (lesson 9).
#
# ## Which cells carry weight?
#
# *Level: deeper.*
#
# The same for the cells of three photos. Green cells have more say than the mean would give them, vermilion cells less,
# clear ones about as much. The three share one scale; one cell in fifty lies beyond its ends.

# %%
names = ["007.jpg", "181.jpg", "247.jpg"]
_, traced = model.image_pooling(encode_photos(names), return_trace=True)
extras = [extra_weight(weights) for weights in traced.input_weights()]
assert all(abs(float(extra.mean())) < 0.1 for extra in extras)  # what one cell gains another loses

# %% tags=["drawing"]
side = round(len(extras[0]) ** 0.5)
limit = float(torch.stack(extras).abs().quantile(0.98))
figure, axes = plt.subplots(2, 3, figsize=(9.6, 4.4), layout="constrained")
for column, (name, extra) in enumerate(zip(names, extras)):
    axes[0, column].imshow(gallery_photo(name))
    axes[0, column].axis("off")
    label = "more or less say (%)" if column == 2 else ""
    plots.plot_heat_map(gallery_photo(name), extra.view(side, side), axes[1, column], limit, label)
    axes[1, column].set_title(f"{extra.min():+.0f} % to {extra.max():+.0f} %".replace("-", "−"), fontsize=10)
plt.show()

# %% [markdown]
# With max pooling a cell that wins no dimension has no say at all (lesson 2). Here every cell keeps a share, and some
# get more. The map has no query in it: it shows what the *photo* puts forward, whatever we ask.
#
# ## Why padding must not leak
#
# *Level: deeper.*
#
# Sentences of a batch are padded to the longest. The authors' code sets padded rows to −1000, so that they come last in
# the sort and get no weight in the embedding level. Then it sets them to 0 and leaves them *inside the softmax of the
# token level*. With the paper's score a row of zeros scores 0, and exp(0) = 1: each padded row adds 1 to the sum that
# we divide by. On our matrix that sum was 9.94:

# %%
for padding in (0, 1, 4, 10, 40):
    kept = np.exp(scores) / (np.exp(scores).sum() + padding)
    print(f"{padding:2} padded rows: {100 * kept.sum():3.0f} % of the weight, token level", (kept @ ranked).round(2))

# %% [markdown]
# Nobody changed the sentence, only its neighbour grew longer. Here is that treatment in a few lines, for a trained
# model:


# %%
def leaking_adpool(pool: AdPool, features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """AdPool with padded rows inside the token softmax, as in the authors' code."""
    low = features.masked_fill(~mask.unsqueeze(-1), -1000)
    values = low.sort(dim=1, descending=True).values
    values = values.masked_fill(values == -1000, 0)
    token = (pool.token_scores(values).softmax(1) * values).sum(1)  # the leak: softmax over all rows
    soft = (low.softmax(1) * low).sum(1)
    balance = pool.balance(token, soft)
    return balance[:, :1] * token + balance[:, 1:] * soft


# %% [markdown]
# We pool one caption again and again, next to ever longer neighbours, and measure how far its vector turns away from the
# vector that it has alone. (The library's AdPool gets the same padded batch.) The neighbours go as far as the longest
# caption of this gallery; a model that takes longer texts would go on.

# %%
features_alone, mask_alone = encode_words([sentence])
rows = features_alone.shape[1]
longest_here = max(len(numbers) for numbers in model.tokenizer.encode(gallery.captions))
neighbours = list(range(rows, longest_here + 1))  # tokens of the longest caption in the batch
print(f"the caption has {rows} tokens, the longest of the gallery {longest_here}")
turned = {"authors' treatment": [], "library": []}
alone = torch.nn.functional.normalize(model.text_pooling(features_alone, mask_alone))
for longest in neighbours:
    padded = torch.nn.functional.pad(features_alone, (0, 0, 0, longest - rows))
    mask = torch.nn.functional.pad(mask_alone, (0, longest - rows))
    vectors = leaking_adpool(model.text_pooling, padded, mask), model.text_pooling(padded, mask)
    for angles, vector in zip(turned.values(), vectors):
        distance = float((torch.nn.functional.normalize(vector) - alone).norm())
        angles.append(np.degrees(2 * np.arcsin(distance / 2)))

# %%
ax = plots.plot_curves(
    {name: (neighbours, angles) for name, angles in turned.items()},
    "tokens of the longest caption in the batch",
    "turned by (degrees)",
    colours=(plots.WRONG, plots.RIGHT),
)
ax.set_title("The same caption, next to longer and longer neighbours")
plt.show()

leaking, steady = turned["authors' treatment"], turned["library"]
assert leaking[0] < 0.01  # without padding the two agree
assert max(steady) < 0.01  # the library's vector stays
assert leaking[-1] > 10 * max(max(steady), 1e-3)  # the other one moves
print(f"beside the longest caption it has turned by {leaking[-1]:.1f} degrees")

# %% [markdown]
# When the vector turns, its scores move: the same query can score otherwise in another batch, and a vector stored in an
# index may differ from the one computed tomorrow. (This model was trained without the leak. One trained with
# it may cope better, but its vectors would still move.) The whole model keeps the promise too: encode a caption alone,
# then beside a long one.

# %%
long_neighbour = " ".join(gallery.captions[:4])
alone = model.encode_texts([sentence])[0]
together = model.encode_texts([sentence, long_neighbour])[0]
assert torch.allclose(alone, together, atol=1e-5)
print("alone and beside a long caption: the same vector")

# %% [markdown]
# ## Exercises
#
# **1.** *Level: core.* Write the embedding level for a batch `(B, N, D)` in one line of PyTorch, without `AdPool`.
#
# <details><summary>Hint</summary>Which axis do the words of a sentence lie on? <code>tensor.softmax(axis)</code> and
# <code>tensor.sum(axis)</code> are all you need.</details>

# %% tags=["exercise"]
some_batch = torch.randn(5, 7, 3, generator=torch.Generator().manual_seed(0))
soft = ...  # your turn

# %% tags=["check"]
check("3.1", soft, batch=some_batch)

# %% tags=["solution"]
# Solution
soft = (some_batch.softmax(1) * some_batch).sum(1)  # axis 1 is N: the rows compete, the dimensions do not
assert torch.allclose(soft, AdPool(3, token=False)(some_batch), atol=1e-6)
print("five sets of seven rows, pooled:", tuple(soft.shape))
check("3.1", soft, batch=some_batch)

# %% [markdown]
# **2.** *Level: deeper.* `AdPool(3, variant="paper", balance=(a, b))` mixes with fixed weights. Find token scores and a balance that make it
# mean pooling. And why does *no* balance give the mean with the $w$ of this lesson: where do both levels lie, above or
# below the mean of each column?
#
# <details><summary>Hint</summary>Which of the two levels can be the mean? <code>.double()</code> makes an AdPool fit
# <code>batch</code>, <code>pool.token_score.weight[:] = …</code> sets its scores. For the second question look at the
# figure at the top.</details>

# %% tags=["exercise"]
mean_pool = ...  # your turn: an AdPool(3, variant="paper", …).double()
both_levels_lie = ...  # "above" or "below"

# %% tags=["check"]
check("3.2", mean_pool, both_levels_lie, batch=batch)

# %% tags=["solution"]
# Solution
mean_pool = AdPool(3, variant="paper", balance=(1.0, 0.0)).double()  # all for the token level …
mean_pool.token_score.weight[:] = 0  # … which is the mean when all scores are 0
assert torch.allclose(mean_pool(batch), batch.mean(1))
# With the lesson's w both levels are above the mean in every dimension, and a mix of the two lies between them.
assert (token_level > features.mean(axis=0)).all()
assert (embedding_level > features.mean(axis=0)).all()
both_levels_lie = "above"
print("mean:", mean_pool(batch)[0].numpy(), "· token:", token_level.round(2), "· embedding:", embedding_level.round(2))
check("3.2", mean_pool, both_levels_lie, batch=batch)

# %% [markdown]
# **3.** *Level: core.* Pooling must not depend on the order of the rows. Compute the vectors of `sets` before and after a new order of
# its rows. And make the `input_weights()` of the new order from those of the old one, without pooling again.
#
# <details><summary>Hint</summary><code>any_pool(sets, return_trace=True)</code> gives vectors and trace. Row n of the new
# order is row <code>order[n]</code> of the old.</details>

# %% tags=["exercise"]
torch.manual_seed(0)  # AdPool starts from random weights
any_pool = AdPool(8)
sets, order = torch.randn(2, 6, 8), torch.randperm(6)
before, after, new_weights = ..., ..., ...  # your turn: (2, 8), (2, 8) and (2, 6, 8)

# %% tags=["check"]
check("3.3", before, after, new_weights, pool=any_pool, sets=sets, order=order)

# %% tags=["solution"]
# Solution
before, old_trace = any_pool(sets, return_trace=True)
after = any_pool(sets[:, order])
new_weights = old_trace.input_weights()[:, order]
assert torch.allclose(before, after, atol=1e-6)
for variant in ("paper", "official"):  # both variants
    pool_of_variant = AdPool(8, variant=variant)
    assert torch.allclose(pool_of_variant(sets), pool_of_variant(sets[:, order]), atol=1e-6)
print("The vector stays, and the weights move with their rows.")
check("3.3", before, after, new_weights, pool=any_pool, sets=sets, order=order)

# %% [markdown]
# ## Five questions
#
# Choose, then unfold what you chose: every option says why it is right or wrong.

# %%
quiz("03_adpool")

# %% [markdown]
# ## What the paper says, what we see
#
# | the paper | here |
# |---|---|
# | The token level finds the best combination of mean and k-max (section 3.2) | The mean: exactly. Max and min: as close as you like. k-max in between: not exactly, as a softmax gives no zeros. |
# | The embedding level is a soft version of max pooling | Yes, and the scale of the features decides how soft, as the curve above shows. |
# | One weight per sorted vector, few parameters | So in the equations. The authors' code has a weight per rank *and dimension*, d² + d parameters; it contains the paper's version (asserted above). |
# | Learned balance beats fixed weights: RSUM 426.9 against 421.3 for the best of three fixed pairs (COCO 5K, appendix) | The balance differs from photo to photo (figure above). In our small runs a learned balance beats 0.25 for the token level, and cannot be told from 0.50 and 0.75 with two seeds each (lesson 7). |
# | Without the token level RSUM 420.1, without the embedding level 423.1, with mean pooling instead of AdPool 419.1 (COCO 5K, ablation table) | In our small runs (lesson 7): the token level is worth 33 RSUM; the embedding level nothing that we could measure; and mean pooling is *ahead* of AdPool by 8. |
# | Padding is not mentioned | It matters: in the authors' code a vector changes with its neighbours, in the library it does not. |
#
# **In three lines**: AdPool is a weighted sum of its input, with weights that depend on the input. The weights come from
# ranks (learned) and from values (soft maximum), mixed by a learned balance. The trace tells every weight.
#
# Pooling makes the vectors. What makes a *space* of such vectors good? Next:
# [alignment and uniformity](04_alignment_uniformity.ipynb).
#
# ## References
#
# - Zhang et al., *Improving Visual-Semantic Embedding with Adaptive Pooling and Optimization Objective*, EACL 2023,
#   [arXiv:2210.02206](https://arxiv.org/abs/2210.02206), section 3.2 and appendix.
# - Chen et al., *Learning the Best Pooling Strategy for Visual Semantic Embedding* (VSE∞), CVPR 2021,
#   [arXiv:2011.04305](https://arxiv.org/abs/2011.04305): weights by rank, learned from the position and not from the values.
# - In this package: `vse_demo/pooling/adpool.py`.
