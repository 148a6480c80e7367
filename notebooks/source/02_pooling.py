# %% [markdown]
# # 2 · Pooling is sort → weighted sum
#
# A picture is a set of cells, a sentence is a set of words, and both must become **one** vector before they can be
# compared. The step from many vectors to one is called pooling. This lesson shows that the usual choices (mean, max,
# the mean of the k largest) are the same two moves with other numbers: *sort, then take a weighted sum*.
#
# **You will learn** to pool a small matrix by hand; to write mean, max and k-max as one function; what each of them
# keeps and loses, on a real photo and a real sentence; and why that leaves something to be learned.
#
# **Time**: 25 minutes. **You need**: matrices, a little PyTorch.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch

from vse_demo import RankPool, plots
from vse_demo.encoders import pad_tokens
from vse_demo.shipped import gallery_photo, load_shipped
from vse_demo.teaching import check, quiz, reveal

# %% [markdown]
# ## The idea in one figure
#
# Four words, three dimensions. We sort **each column on its own**, largest value first. A row of the sorted matrix
# is no longer a word: it is a *rank*. Then each rank gets a weight, and we add up.

# %%
features = np.array(
    [
        [1.0, 6.0, 2.0],  # "a"
        [9.0, 2.0, 1.0],  # "dog"
        [4.0, 5.0, 2.0],  # "is"
        [2.0, 3.0, 7.0],  # "running"
    ]
)
words = ["a", "dog", "is", "running"]
ranked = -np.sort(-features, axis=0)
weights = np.array([0.5, 0.3, 0.2, 0.0])
print("pooled:", weights @ ranked)

# %% tags=["drawing"]
figure, axes = plt.subplots(1, 3, figsize=(10, 2.6), layout="constrained", width_ratios=(1, 1, 0.9))
plots.plot_matrix(features, words, ["d1", "d2", "d3"], ax=axes[0], limits=(0, 9))
axes[0].set_title("features: a row per word")
by_rank = [f"rank {r}  × {w}" for r, w in zip(range(1, 5), weights)]
plots.plot_matrix(ranked, by_rank, ["d1", "d2", "d3"], ax=axes[1], limits=(0, 9))
axes[1].set_title("sorted: a row per rank")
plots.plot_matrix((weights @ ranked)[None], ["sum"], ["d1", "d2", "d3"], ax=axes[2], limits=(0, 9))
axes[2].set_title("pooled: one vector")
axes[2].set_box_aspect(0.2)  # a single row
plt.show()

# %% [markdown]
# ## By hand: three poolings, three rows of weights
#
# **Mean** pooling adds all four ranks with weight 1/4. Sorting did not matter, of course: a sum does not care about
# order. That is exactly why the mean fits into the scheme.

# %%
mean = np.array([1 / 4, 1 / 4, 1 / 4, 1 / 4]) @ ranked
print("by hand, d1: (9 + 4 + 2 + 1) / 4 =", (9 + 4 + 2 + 1) / 4)
print("all dimensions:", mean)
assert np.allclose(mean, features.mean(axis=0))

# %% [markdown]
# **Max** pooling keeps rank 1 and forgets the rest. Note that the result mixes words: its first number comes from
# *dog*, its second from *a*, its third from *running*.

# %%
maximum = np.array([1, 0, 0, 0]) @ ranked
print("max:", maximum, " from", [words[row] for row in features.argmax(axis=0)])
assert np.allclose(maximum, features.max(axis=0))

# %% [markdown]
# **k-max** pooling is the mean of the k largest values of each column. For k = 2:

# %%
two_max = np.array([1 / 2, 1 / 2, 0, 0]) @ ranked
print("2-max:", two_max)
assert np.allclose(two_max, np.sort(features, axis=0)[-2:].mean(axis=0))


# %% [markdown]
# ## As one function
#
# So one function is enough, and the pooling is chosen by the weights alone. k-max moves smoothly from max (k = 1) to
# mean (k = number of rows).


# %%
def pool(features: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Sort each column, largest first, then take the weighted sum of the rows."""
    return weights @ -np.sort(-features, axis=0)


def k_max_weights(k: int, rows: int) -> np.ndarray:
    return np.array([1 / k] * k + [0.0] * (rows - k))


for k in (1, 2, 3, 4):
    print(f"k = {k}:", pool(features, k_max_weights(k, 4)).round(2))
assert np.allclose(pool(features, k_max_weights(1, 4)), features.max(axis=0))
assert np.allclose(pool(features, k_max_weights(4, 4)), features.mean(axis=0))

# %%
rows = 12
shown = {"mean": k_max_weights(rows, rows), "5-max": k_max_weights(5, rows), "max": k_max_weights(1, rows)}
plots.plot_rank_weights(shown).set_title("What differs is how much each rank counts")
plt.show()

# %% [markdown]
# ## The same from the library
#
# `RankPool` does this for a batch, `(B, N, D) → (B, D)`. Sentences have different lengths, so a batch is padded, and a
# **mask** says which rows are real. Padding takes no part: not in the sort, not in the weights. Below, two
# invented rows of huge numbers are added and masked out, and nothing changes.

# %%
batch = torch.tensor(features).unsqueeze(0)  # (1, 4, 3)
for name, pooling in (("mean", RankPool()), ("max", RankPool([1])), ("2-max", RankPool([1, 1]))):
    print(f"{name:6}", pooling(batch)[0].tolist())
assert torch.allclose(RankPool([1, 1])(batch)[0], torch.tensor(two_max))

padded = torch.cat([batch, torch.full((1, 2, 3), 1000.0, dtype=batch.dtype)], dim=1)
mask = torch.tensor([[True, True, True, True, False, False]])
assert torch.equal(RankPool([1])(padded, mask), RankPool([1])(batch))

# %% [markdown]
# ## On a real photo
#
# Now with the trained model. Its image encoder cuts a photo into a grid of cells and describes each by 512 numbers. We
# pool these cells in three ways and ask: **which cells does each pooling listen to?** With the mean every cell has
# the same say. With max, a cell counts as often as it wins a dimension.
#
# **Guess first.** Half of what max keeps of the photo comes from (a) about half of the cells, (b) less than a quarter
# of the cells, (c) one or two cells.

# %% tags=["guess"]
my_guess = ...  # "a", "b" or "c"

# %%
gallery = load_shipped("grid-minilm")
model = gallery.model
photo = gallery_photo("001.jpg")
with torch.inference_mode():
    grid_features = model.read_image_features([photo])
    everywhere = torch.ones(grid_features.shape[:2], dtype=torch.bool)
    image_features = model.image_encoder(grid_features, everywhere)[0]  # (cells, 512)
cell_count = len(image_features)
side = round(cell_count**0.5)
print(f"{side} × {side} cells, {image_features.shape[1]} dimensions")


def share_of_each_row(features: torch.Tensor, k: int) -> torch.Tensor:
    """How often a row is among the k largest of a dimension, as a share of all that is kept."""
    chosen = features.topk(k, dim=0).indices.flatten()
    return chosen.bincount(minlength=len(features)) / len(chosen)


# %% tags=["drawing"]
figure, axes = plt.subplots(1, 4, figsize=(12, 2.3), layout="constrained")
axes[0].imshow(photo)
axes[0].set_title("the photo")
for ax, k, name in zip(axes[1:], (1, 5, cell_count), ("max", "5-max", "the mean")):
    share = 100 * share_of_each_row(image_features, k).view(side, side)
    shown = ax.imshow(share, cmap="cividis", vmin=0, vmax=5, extent=(0, photo.width, photo.height, 0))
    ax.set_title(f"what {name} listens to")
for ax in axes:
    ax.axis("off")
figure.colorbar(shown, ax=axes, label="share of a cell (%)")
plt.show()

# %%
half_from = {}
for k in (1, 5, cell_count):
    share = share_of_each_row(image_features, k).sort(descending=True).values
    assert abs(float(share.sum()) - 1) < 1e-5
    half_from[k] = int((share.cumsum(0) < 0.5).sum()) + 1
    print(f"k = {k:3}: half of what is kept comes from {half_from[k]} of {cell_count} cells")
assert half_from[1] <= half_from[5] < 0.6 * half_from[cell_count] and half_from[cell_count] == (cell_count + 1) // 2
seen = "c" if half_from[1] <= 2 else "b" if half_from[1] < cell_count / 4 else "a"
reveal(seen, my_guess, f"For max it is {half_from[1]} of {cell_count} cells, for the mean {half_from[cell_count]}.")

# %% [markdown]
# Max hears the few cells that stand out; the mean hears the background as loudly as the subject. Neither is right for
# every photo: a portrait is a few cells, a landscape is all of them.
#
# ## On a real sentence
#
# The same question for words. The model reads *subwords*: `##` marks the rest of a word that its vocabulary does not
# have whole, and `[CLS]` and `[SEP]` stand around every sentence. Each is a row like all others.
#
# **Guess first.** A fair share is one divided by the number of tokens, what the mean would give. With max, the token that is
# heard most has (a) less than twice a fair share, (b) two to five times as much, (c) more than five times as much.

# %% tags=["guess"]
my_guess = ...  # "a", "b" or "c"

# %%
sentence = gallery.captions[0]
tokens = model.tokenizer.tokens(sentence)
with torch.inference_mode():
    text_features = model.text_encoder(*pad_tokens(model.tokenizer.encode([sentence])))[0]

# %% tags=["drawing"]
figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained", sharex=True, sharey=True)
for ax, k in zip(axes, (1, 5)):
    plots.plot_word_parts(tokens, 100 * share_of_each_row(text_features, k), ax=ax, helps_or_hurts=False)
    ax.axvline(100 / len(tokens), color="black", lw=1, ls="--")
    ax.set(xlabel="share of what is kept (%)", title=f"what {'max' if k == 1 else '5-max'} listens to")
plt.show()

# %%
fair = 1 / len(tokens)
print(f"a fair share is {fair:.1%}")
for k, name in ((1, "max"), (5, "5-max")):
    shares = share_of_each_row(text_features, k)
    print(f"{name:5} gives a token from {float(shares.min()):.1%} to {float(shares.max()):.1%}")
heard = share_of_each_row(text_features, 1)
assert heard.max() > 1.5 * share_of_each_row(text_features, 5).max()
times = float(heard.max()) / fair
seen = "a" if times < 2 else "b" if times <= 5 else "c"
reveal(seen, my_guess, f"“{tokens[int(heard.argmax())]}” has {times:.1f} times a fair share.")

# %% [markdown]
# The dashed line is a fair share. So max hears the words that stand out and is nearly deaf to
# the small ones. 5-max is fairer, yet not fair: its loudest token still has several times the say of its faintest.
#
# ## Does it matter?
#
# Take the trained features of all 1,380 captions, pool them with one function and other weights, and ask of each
# caption: is its **nearest other caption** one of the same photo? The more often, the more the pooled vector says about
# the picture. (The model was trained with AdPool, the subject of the next lesson, so this compares poolings on features
# that were made for another one. A model trained with each is in [lesson 7](07_evaluation.ipynb).)
#
# **Guess first.** Which of the poolings is ahead of all the others by more than three points of a hundred? (a) The mean,
# (b) max, (c) neither of the two.

# %% tags=["guess"]
my_guess = ...  # "a", "b" or "c"

# %%
image_ids = torch.tensor(gallery.image_ids)
poolings = {"mean": RankPool(), "10-max": RankPool([1] * 10), "5-max": RankPool([1] * 5), "max": RankPool([1])}
pooled = {name: [] for name in poolings}
with torch.inference_mode():
    for start in range(0, len(image_ids), 230):
        sentences = gallery.captions[start : start + 230]
        tokens_of_all, mask = pad_tokens(model.tokenizer.encode(sentences))
        features_of_all = model.text_encoder(tokens_of_all, mask)
        for name, pooling in poolings.items():
            pooled[name].append(pooling(features_of_all, mask))

found = {}
rivals = len(image_ids) - 1
for name, parts in pooled.items():
    unit = torch.nn.functional.normalize(torch.cat(parts), dim=1)
    nearest = (unit @ unit.T).fill_diagonal_(-1).argmax(1)  # a caption is not its own neighbour
    found[name] = float((image_ids[nearest] == image_ids).float().mean())
    print(f"{name:7} {found[name]:.2f}")
print(f"by guessing {4 / rivals:.3f}")
assert min(found.values()) > 0.35 > 50 * 4 / rivals
best, second = sorted(found, key=found.get)[:-3:-1]
seen = {"mean": "a", "max": "b"}.get(best, "c") if found[best] > found[second] + 0.03 else "c"
reveal(seen, my_guess, f"From the least to the most it is {min(found.values()):.2f} to {max(found.values()):.2f}.")

# %% [markdown]
# All are far above guessing. How far apart are they? The model was trained with AdPool, which listens to the mean *and* to
# the largest values, so its features had to be good for both. With features of another model the gaps, and even the order,
# can be different, which is why people try them all.

# %% [markdown]
# ## Exercises
#
# **1.** Median pooling takes the middle value of each column. Write it as `pool(features, weights)` for four rows
# (the median of four numbers is the mean of the middle two).
#
# <details><summary>Hint</summary>Which two ranks are in the middle of 1, 2, 3, 4?</details>

# %% tags=["exercise"]
median_weights = ...  # your turn: four numbers

# %% tags=["check"]
check("2.1", median_weights)

# %% tags=["solution"]
# Solution
median_weights = np.array([0, 1 / 2, 1 / 2, 0])
assert np.allclose(pool(features, median_weights), np.median(features, axis=0))
print("median:", pool(features, median_weights))
check("2.1", median_weights)

# %% [markdown]
# **2.** Show with a counterexample that max pooling cannot tell apart some sets that mean pooling can, and the other
# way round.
#
# <details><summary>Hint</summary>One dimension is enough. What does max forget? What does the mean
# forget?</details>

# %% tags=["exercise"]
same_max, same_mean = ..., ...  # each a pair of lists of numbers

# %% tags=["check"]
check("2.2", same_max, same_mean)

# %% tags=["solution"]
# Solution
same_max = ([1.0, 5.0], [4.0, 5.0])  # max forgets all but the largest
same_mean = ([0.0, 6.0], [3.0, 3.0])  # the mean forgets how the total is spread
assert max(same_max[0]) == max(same_max[1]) and np.mean(same_max[0]) != np.mean(same_max[1])
assert np.mean(same_mean[0]) == np.mean(same_mean[1]) and max(same_mean[0]) != max(same_mean[1])
print("max cannot tell", *same_max, "· mean cannot tell", *same_mean)
check("2.2", same_max, same_mean)

# %% [markdown]
# **3.** Pooling must not depend on the order of the rows. Write `unsorted`, a pooling that gives its weights to the rows
# *without* sorting. Take a random batch and a random order of its rows: does the result of `RankPool([3, 2, 1])` stay?
# Does that of `unsorted`?
#
# <details><summary>Hint</summary><code>torch.randperm</code> gives a random order of the rows; <code>(sets * weights[:,
# None]).sum(1)</code> is a weighted sum of rows; <code>torch.allclose</code> compares.</details>

# %% tags=["exercise"]
unsorted = ...  # your turn: a function of a batch (B, N, D) and of N weights
sorted_stays, unsorted_stays = ..., ...  # True or False

# %% tags=["check"]
check("2.3", unsorted, sorted_stays, unsorted_stays)


# %% tags=["solution"]
# Solution
def unsorted(sets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return (sets * weights[:, None]).sum(1)


generator = torch.Generator().manual_seed(0)
sets, order = torch.randn(2, 6, 4, generator=generator), torch.randperm(6, generator=generator)
weights_of_rows = torch.tensor([3.0, 2, 1, 0, 0, 0]) / 6
sorted_stays = torch.allclose(RankPool([3, 2, 1])(sets), RankPool([3, 2, 1])(sets[:, order]))
unsorted_stays = torch.allclose(unsorted(sets, weights_of_rows), unsorted(sets[:, order], weights_of_rows))
print("sorted: the order of rows does not matter. Unsorted weights: it does.")
check("2.3", unsorted, sorted_stays, unsorted_stays)

# %% [markdown]
# ## Five questions
#
# Choose, then unfold what you chose: every option says why it is right or wrong.

# %%
quiz("02_pooling")

# %% [markdown]
# ## What the paper says, what we see
#
# | the paper | here |
# |---|---|
# | Mean, max and k-max are special cases of sort → weighted sum (section 3.2) | Yes: one function, asserted above. |
# | The best pooling depends on the encoder and has to be tuned by hand | Which cells and words are heard changes a lot with k, as the figures show. Whether tuning pays is measured in lesson 7. |
#
# So the weights are a choice, and a good choice depends on the input. Next: [let the model learn them](03_adpool.ipynb).
#
# ## References
#
# - Zhang et al., *Improving Visual-Semantic Embedding with Adaptive Pooling and Optimization Objective*, EACL 2023,
#   [arXiv:2210.02206](https://arxiv.org/abs/2210.02206), section 3.2.
# - Chen et al., *Learning the Best Pooling Strategy for Visual Semantic Embedding* (VSE∞), CVPR 2021,
#   [arXiv:2011.04305](https://arxiv.org/abs/2011.04305): sort → weighted sum with learned weights by rank.
