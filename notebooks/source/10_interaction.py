# %% [markdown]
# # 10 · None, late or early interaction
#
# So far a photo and a sentence became one vector each, and only these two met. That is fast: photos are encoded once. But
# a vector has to say everything about a photo before anyone has asked. What do we gain if the two sides meet earlier, and
# what does it cost?
#
# **You will learn** to place a method by where image and text first meet; to compute a late interaction by hand; to train
# a bi-encoder, a late interaction and a small cross-encoder on the same data; to measure quality against items per second;
# and to build a search in two stages, and to see when the second one helps.
#
# **Time**: 45 minutes. **You need**: [lesson 7](07_evaluation.ipynb), a little PyTorch.

# %%
import time

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d, normalize

from vse_demo import AdOpt, AdPool, open_dataset, plots, retrieval_ranks
from vse_demo.encoders import pad_tokens
from vse_demo.interaction import SCAN, FeatureSets, Interaction
from vse_demo.retrieval import rerank
from vse_demo.shipped import gallery_photo, load_shipped
from vse_demo.teaching import check, quiz, reveal

NONE, LATE, EARLY = plots.PALETTE[0], plots.PALETTE[4], plots.PALETTE[3]  # colours of the three

# %% [markdown]
# ## The idea in one figure
#
# Blue is the photo, orange the sentence; a dot is a vector. **None**: each side is pooled alone, and one cosine is left.
# **Late**: all cells and all words are kept and compared with each other, then the comparisons are pooled. **Early**: cells
# and words go through one network together, which gives a score for this pair and no vectors at all.

# %% tags=["drawing"]
figure, axes = plt.subplots(1, 3, figsize=(11.5, 3.2), layout="constrained")
cells, words = [(x, 2.0) for x in np.linspace(0.2, 1.6, 4)], [(x, 2.0) for x in np.linspace(2.4, 3.8, 4)]
for ax, title in zip(
    axes, ("none: two vectors, one cosine", "late: every cell with every word", "early: one network reads both")
):
    ax.plot(*np.array(cells).T, "o", color=plots.IMAGE, ms=11)
    ax.plot(*np.array(words).T, "o", color=plots.TEXT, ms=11)
    ax.set(title=title, xlim=(-0.2, 4.2), ylim=(-0.6, 2.4))
    ax.axis("off")
for points, place, colour in ((cells, (0.9, 0.9), plots.IMAGE), (words, (3.1, 0.9), plots.TEXT)):
    for point in points:
        axes[0].plot(*np.array([point, place]).T, color="#999999", lw=1, zorder=0)
    axes[0].plot(*place, "o", color=colour, ms=14)
    axes[0].plot(*np.array([place, (2, 0)]).T, color="#999999", lw=1, zorder=0)
along = np.linspace(0, 1, 41)
for one, _ in cells:
    for other, _ in words:
        deep = 0.3 * (other - one)
        axes[1].plot(one + along * (other - one), 2 - 4 * deep * along * (1 - along), color="#999999", lw=0.6, zorder=0)
axes[1].plot([2, 2], [2 - 0.3 * (words[-1][0] - cells[0][0]), 0], color="#999999", lw=1, zorder=0)  # from the deepest
axes[2].add_patch(plt.Rectangle((0, 0.7), 4, 0.7, fc="#EEEEEE", ec="#555555"))
axes[2].text(2, 1.05, "transformer", ha="center", va="center", fontsize=12)
for x, _ in [*cells, *words]:
    axes[2].plot([x, x], [1.9, 1.4], color="#999999", lw=1, zorder=0)
axes[2].plot([2, 2], [0.7, 0], color="#999999", lw=1, zorder=0)
for ax in axes:
    ax.plot(2, 0, "o", color=plots.RIGHT, ms=14)
    ax.text(2, -0.45, "score", ha="center", fontsize=11)
plt.show()

# %% [markdown]
# ## By hand: two photos that one vector cannot tell apart
#
# A sentence has two words, (1, 0) and (0, 1). Photo A has the cells (1, 0) and (0, 1): each word has a cell of its own.
# Photo B has twice the cell (0.7, 0.7): a bit of both everywhere. **Pooled** by the mean, both photos point to (1, 1), and
# so does the sentence: a cosine of 1 with both.
#
# A late interaction asks, for each word, how well its *best* cell fits, and averages over the words (this is MaxSim, of
# ColBERT). For A: (1 + 1) / 2 = 1. For B: (0.71 + 0.71) / 2 = 0.71.

# %%
sentence_words = np.array([[1.0, 0.0], [0.0, 1.0]])
photo_a, photo_b = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.7, 0.7], [0.7, 0.7]])


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def pooled_cosine(cells: np.ndarray, words: np.ndarray) -> float:
    return float(unit(cells.mean(axis=0)) @ unit(words.mean(axis=0)))


def max_sim(cells: np.ndarray, words: np.ndarray) -> float:
    """For each word its best cell; the mean over the words."""
    return float((unit(words) @ unit(cells).T).max(axis=1).mean())


for name, photo in (("A", photo_a), ("B", photo_b)):
    print(f"photo {name}: pooled {pooled_cosine(photo, sentence_words):.2f}, late {max_sim(photo, sentence_words):.2f}")
assert np.isclose(pooled_cosine(photo_a, sentence_words), pooled_cosine(photo_b, sentence_words))
assert np.isclose(max_sim(photo_a, sentence_words), 1) and np.isclose(max_sim(photo_b, sentence_words), 0.5**0.5)

# %% [markdown]
# ## The same from the library
#
# **SCAN** is a softer MaxSim: each word takes a *weighted mean* of the cells, with more weight for those that fit, and is
# compared with that. `vse_demo.interaction` has it and others (CAAN, IMRAM, DIME, PVSE). They take two sets of features and
# masks, and give the similarity of every sentence with every photo.

# %%
images = FeatureSets(torch.tensor(np.stack([photo_a, photo_b])).float(), torch.ones(2, 2, dtype=torch.bool))
texts = FeatureSets(torch.tensor(sentence_words[None]).float(), torch.ones(1, 2, dtype=torch.bool))
scan = SCAN()
print("SCAN, the sentence with A and B:", [round(value, 2) for value in scan(images, texts)[0].tolist()])
assert scan(images, texts)[0, 0] > scan(images, texts)[0, 1]


# %% [markdown]
# ## An early interaction in a few lines
#
# A new interaction implements `forward`. (The library has a larger one, `fusion`.) Ours puts the words and the cells of
# each *pair* into one row of tokens, lets a small transformer read it, and makes one number of it. There is a row for
# every pair: C · B of them.


# %%
class CrossEncoder(Interaction):
    """One transformer layer over the words and cells of a pair."""

    def __init__(self, dim: int):
        super().__init__()
        self.kind = nn.Parameter(torch.zeros(2, dim))  # tells words from cells
        self.layer = nn.TransformerEncoderLayer(
            dim, nhead=4, dim_feedforward=2 * dim, dropout=0.0, batch_first=True, norm_first=True
        )
        self.before, self.after = nn.LayerNorm(dim), nn.LayerNorm(dim)  # features of any size, scores of a modest one
        self.score = nn.Linear(dim, 1)

    def forward(self, images: FeatureSets, texts: FeatureSets) -> torch.Tensor:
        (c, m, d), (b, n, _) = texts.features.shape, images.features.shape
        words = (self.before(texts.features) + self.kind[0])[:, None].expand(c, b, m, d)
        cells = (self.before(images.features) + self.kind[1])[None].expand(c, b, n, d)
        mask = torch.cat([texts.mask[:, None].expand(c, b, m), images.mask[None].expand(c, b, n)], 2).flatten(0, 1)
        read = self.layer(torch.cat([words, cells], 2).flatten(0, 1), src_key_padding_mask=~mask)
        mean = (read * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        return 0.2 * self.score(self.after(mean)).view(c, b)  # about as large as a cosine


torch.manual_seed(0)
small = CrossEncoder(8)
sets = [
    FeatureSets(torch.randn(count, rows, 8), torch.ones(count, rows, dtype=torch.bool))
    for count, rows in ((3, 5), (2, 4))
]
padded = FeatureSets(
    nn.functional.pad(sets[1].features, (0, 0, 0, 2), value=9.0), nn.functional.pad(sets[1].mask, (0, 2))
)
assert small(*sets).shape == (2, 3)
assert torch.allclose(small(*sets), small(sets[0], padded), atol=1e-5)  # padding takes no part
print("similarities of 2 sentences with 3 photos:", tuple(small(*sets).shape))


# %% [markdown]
# ## The same data, three models
#
# All three get the same features: the words of the shipped model, and its cells, averaged to 6 × 6 (as many vectors as the
# paper has regions). These stay frozen. Each has a linear map to 64
# dimensions for either side, and then its own way to a score: AdPool and a cosine, SCAN, or our transformer. They learn from
# 166 photos of the gallery, with the same loss (AdOpt), batches, steps and seed. Nothing else differs.
#
# **Which photos?** How the cross-encoder is built and trained (the two norms, the 0.2, the steps) was chosen by its results
# on the validation and test photos of the gallery. Whoever chooses by some photos and reports the same ones has chosen luck
# too. So here these are learned from, and what we report is 110 *other* photos that no choice has looked at, drawn from the
# gallery's training photos.

# %%
gallery = load_shipped("grid-minilm")
model, dataset = gallery.model, open_dataset()
never_chosen_by = set(dataset.split("train").names)
untouched = [number for number, name in enumerate(gallery.names) if name in never_chosen_by]
new = sorted(np.random.default_rng(0).permutation(untouched)[:110].tolist())
learn = sorted(set(range(len(gallery))) - set(new))


@torch.inference_mode()
def read_features() -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The cells of all photos (I, 36, D), and the words of each caption (M, D)."""
    cells = []
    for start in range(0, len(gallery), 23):
        grid = model.read_image_features([gallery_photo(name) for name in gallery.names[start : start + 23]])
        rows = model.image_encoder(grid, torch.ones(grid.shape[:2], dtype=torch.bool))
        side = round(rows.shape[1] ** 0.5)
        square = rows.transpose(1, 2).unflatten(2, (side, side))
        cells.append(adaptive_avg_pool2d(square, 6).flatten(2).transpose(1, 2))
    words = []
    for start in range(0, len(gallery.captions), 115):
        tokens, mask = pad_tokens(model.tokenizer.encode(gallery.captions[start : start + 115]))
        words += [rows[real] for rows, real in zip(model.text_encoder(tokens, mask), mask)]
    return torch.cat(cells).clone(), [rows.clone() for rows in words]


all_cells, all_words = read_features()
print(f"{len(learn)} photos to learn from, {len(new)} new ones; {all_cells.shape[1]} cells each")


# %%
class Pooled(Interaction):
    """No interaction: AdPool on each side, then a cosine."""

    def __init__(self, dim: int):
        super().__init__()
        self.of_images, self.of_texts = AdPool(dim), AdPool(dim)

    def forward(self, images: FeatureSets, texts: FeatureSets) -> torch.Tensor:
        return (
            normalize(self.of_texts(texts.features, texts.mask))
            @ normalize(self.of_images(images.features, images.mask)).T
        )


class Head(nn.Module):
    """Linear maps of both sides to few dimensions, and an interaction of these."""

    def __init__(self, interaction: Interaction, dim: int = 64):
        super().__init__()
        self.image_map, self.text_map = (nn.Linear(all_cells.shape[2], dim) for _ in range(2))
        self.interaction = interaction

    def forward(self, photos: list[int], captions: list[int]) -> torch.Tensor:
        cells, words = all_cells[photos], FeatureSets.pad([all_words[caption] for caption in captions])
        images = FeatureSets(self.image_map(cells), torch.ones(cells.shape[:2], dtype=torch.bool))
        return self.interaction(images, FeatureSets(self.text_map(words.features), words.mask))


def train_head(kind: type, seed: int = 0, steps: int = 100, batch: int = 16) -> Head:
    torch.manual_seed(seed)
    head, objective = Head(kind(64) if kind is not SCAN else SCAN()), AdOpt()
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
    draw = np.random.default_rng(seed)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 1e-3 * (1 + np.cos(np.pi * step / steps)) / 2
        photos = draw.choice(learn, batch, replace=False).tolist()
        captions = [int(draw.choice(np.flatnonzero(gallery.image_ids == photo))) for photo in photos]
        loss = objective.from_similarities(head(photos, captions), torch.arange(batch)).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
    return head.eval()


kinds = {"none: AdPool, cosine": Pooled, "late: SCAN": SCAN, "early: cross-encoder": CrossEncoder}
heads = {name: train_head(kind) for name, kind in kinds.items()}

# %% [markdown]
# **Guess first.** On photos that none of them has seen, trained on 166 photos each, the RSUM of the early interaction is
# (a) above both others, (b) between them, (c) below both.

# %% tags=["guess"]
my_guess = ...  # "a", "b" or "c"

# %% tags=["nbval-ignore-output"]
new_captions = [int(caption) for photo in new for caption in np.flatnonzero(gallery.image_ids == photo)[:2]]
place = {photo: number for number, photo in enumerate(new)}
belongs = torch.tensor([place[int(gallery.image_ids[caption])] for caption in new_captions])


@torch.inference_mode()
def compare_all(head: Head, block: int = 20) -> torch.Tensor:
    """Every new caption with every new photo."""
    return torch.cat([head(new, new_captions[start : start + block]) for start in range(0, len(new_captions), block)])


def rsum(similarities: torch.Tensor) -> float:
    return float(
        sum(100 * (ranks <= k).float().mean() for ranks in retrieval_ranks(similarities, belongs) for k in (1, 5, 10))
    )


scores = {name: compare_all(head) for name, head in heads.items()}
quality = {name: rsum(similarities) for name, similarities in scores.items()}
shipped_scores = gallery.caption_vectors[new_captions] @ gallery.image_vectors[new].T
for name, value in quality.items():
    print(f"{name:22} RSUM {value:.0f}")
print(f"{'the shipped model':22} RSUM {rsum(shipped_scores):.0f}, which learned from thousands of photos")

# %%
none, late, early = quality.values()
by_chance = rsum(torch.randn(shipped_scores.shape, generator=torch.Generator().manual_seed(0)))
assert early > 3 * by_chance and early < min(none, late) - 60 and max(none, late) < rsum(shipped_scores) - 30
reveal("10.1", my_guess)

# %% [markdown]
# Do not read a ranking of methods out of this: heads of 64 dimensions, 100 steps, one seed. One seed cannot say which of the
# first two is ahead (lesson 7). The frozen features were made for a cosine, which gives both a head start; a cross-encoder has to
# learn from nothing what a match is, and 166 photos are far too few for that. (In the paper's main table, lesson 7, SCAN and
# other late interactions stand *between* VSE++ and VSE∞.) What the lesson can measure without doubt is the price.
#
# ## What it costs
#
# Without interaction a photo is encoded and pooled once. For a query, what is left is a dot product. A late interaction can
# keep the cells (many times as many numbers), but has to compare all words with all cells for each pair. An early one can
# keep nothing: the network runs for each pair. We measure pairs per second, on this machine, now.
#
# **Guess first.** In a second, a model without interaction compares (a) some ten times, (b) hundreds to thousands of times,
# (c) more than 20,000 times as many pairs as the late interaction.

# %% tags=["guess"]
my_guess = ...  # "a", "b" or "c"


# %% tags=["nbval-ignore-output"]
@torch.inference_mode()
def pairs_per_second(name: str, captions: int = 10) -> float:
    """Of what is left to do when a query comes: photos are prepared ahead as far as the method allows."""
    head, query = heads[name], new_captions[:captions]
    cells = head.image_map(all_cells[new])
    images = FeatureSets(cells, torch.ones(cells.shape[:2], dtype=torch.bool))
    words = FeatureSets.pad([all_words[caption] for caption in query])
    texts = FeatureSets(head.text_map(words.features), words.mask)
    if name.startswith("none"):
        stored = normalize(head.interaction.of_images(images.features, images.mask))
        text_vectors = normalize(head.interaction.of_texts(texts.features, texts.mask))
        work = lambda: text_vectors @ stored.T  # noqa: E731
    else:
        work = lambda: head.interaction(images, texts)  # noqa: E731
    work()
    rounds = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        rounds.append(time.perf_counter() - start)
    return captions * len(new) / min(rounds)


speed = {name: pairs_per_second(name) for name in heads}
ax = plots.plot_trade_off(
    {name: (speed[name], quality[name]) for name in heads}, "pairs per second (log scale)", "RSUM on new photos"
)
ax.set_title("Quality against items per second")
plt.show()
for name, value in speed.items():
    print(f"{name:22} {value:14,.0f} pairs per second; a query over a million photos takes {1e6 / value:10.1f} s")

# %%
numbers = {"none": 64, "late": 64 * all_cells.shape[1], "early": 0}
print("numbers kept for a photo:", numbers)
assert (
    speed["none: AdPool, cosine"] > 10 * speed["late: SCAN"]
    and speed["none: AdPool, cosine"] > 10 * speed["early: cross-encoder"]
)
times = speed["none: AdPool, cosine"] / speed["late: SCAN"]
seen = "c" if times > 20_000 else "b" if times > 50 else "a"
reveal(seen, my_guess, "One dot product is left for each pair, instead of every word with every cell.")

# %% [markdown]
# ## Two stages
#
# A fast model finds n candidates, a slow one puts only these in order. With n = 1 that is the fast model alone, with all
# photos the slow one alone. The slow model can only reorder what the fast one found: **R@1 of the whole can never be higher
# than R@n of the first stage**. Here the fast one is our bi-encoder head, and either of the others comes second.
#
# **Guess first.** The cross-encoder puts ten candidates in order. Compared with the first stage alone, R@1 (a) rises by more
# than five points, (b) changes by less than that, (c) falls by more.

# %% tags=["guess"]
my_guess = ...  # "a", "b" or "c"


# %%
def two_stages(first: torch.Tensor, second: torch.Tensor, n: int) -> torch.Tensor:
    """Similarities whose order is that of `second` among the n best of `first`, and that of `first` below."""
    chosen = first.topk(n, dim=1).indices
    lifted = first - 10  # below all that is reranked
    return lifted.scatter(1, chosen, second.gather(1, chosen))


def recall(similarities: torch.Tensor, k: int) -> float:
    return float(100 * (retrieval_ranks(similarities, belongs)[1] <= k).float().mean())


# %%
first = scores["none: AdPool, cosine"]
candidates = [1, 2, 5, 10, 20, 50, len(new)]
ceiling = [recall(first, n) for n in candidates]
curves = {name: [recall(two_stages(first, scores[name], n), 1) for n in candidates] for name in list(heads)[1:]}
for name, curve in curves.items():
    assert np.isclose(curve[0], recall(first, 1)) and np.isclose(curve[-1], recall(scores[name], 1))
    assert all(reached <= top + 1e-6 for reached, top in zip(curve, ceiling))

# %% tags=["drawing", "figure-varies"]
figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
for (name, curve), colour in zip(curves.items(), (LATE, EARLY)):
    ax.plot(candidates, curve, "o-", color=colour, label=f"then {name}")
ax.plot(candidates, ceiling, "--", color="#888888", label="ceiling: R@n of the first stage")
ax.axhline(recall(first, 1), color=NONE, lw=1, label="first stage alone")
ax.set(xscale="log", xlabel="n, candidates of the first stage", ylabel="R@1, text → image (%)", ylim=(0, 105))
ax.set_xticks(candidates, [str(n) for n in candidates])
ax.minorticks_off()
ax.legend(frameon=False, fontsize=9)
plt.show()

# %%
late_gain, early_gain = (curve[candidates.index(10)] - recall(first, 1) for curve in curves.values())
print("ten candidates, ordered by the cross-encoder: fewer right than by the first stage alone:", early_gain < -5)
print("ten candidates, ordered by SCAN: within ten points of the first stage alone:", abs(late_gain) < 10)
assert early_gain < -5 and abs(late_gain) < 10
seen = "a" if early_gain > 5 else "c" if early_gain < -5 else "b"
reveal(seen, my_guess, "At n = 10, compare its curve with the line of the first stage alone.")

# %% [markdown]
# Two stages are an offer: the quality of the second for the price of the first. It is worth taking only where the second one
# **is clearly better on the candidates**. One that orders them about as well as the first adds a few points at best, which one
# seed cannot tell from luck. One that orders them worse costs right answers, the more the more it may move. Which of the two
# curves is which? Remember the budget of 166 photos. (The runs on 2,000 photos, at the end of
# [`assets/runs/compare`](../assets/runs/compare/README.md), say: in two stages a method reaches about its own R@1, be it more
# or less than that of the first stage.)
#
# In the library this is one call. `rerank` takes what was found and a model that orders it: one that interacts, or any other.
# Here a second *bi-encoder* orders what the first found (an ensemble in two stages):

# %%
query = gallery.captions[7]
hits = gallery.search_images(query, k=10)
other = load_shipped("grid-bigru").model
ordered = rerank(other, hits, [gallery_photo(hit.item) for hit in hits], [query])
print("found:    ", [hit.item for hit in hits][:3], "…")
print("reordered:", [hit.item for hit in ordered][:3], "…")
assert {hit.item for hit in ordered} == {hit.item for hit in hits}

# %% [markdown]
# ## Where CLIP and ALIGN stand
#
# The paper compares itself with large pretrained models (COCO, 5,000 test images) and counts *operating items per second*, in
# multiples of the slowest.

# %%
in_paper = {  # RSUM, times ALIGN's speed where the paper gives one, and where image and text meet
    "ViLBERT": (406.9, None, "early"), "UNITER": (454.4, 9.6, "early"), "OSCAR": (479.9, 4.3, "early"),
    "ALIGN": (500.4, 1.0, "none"), "CLIP": (500.9, None, "none"), "MVP": (502.6, None, "none"),
    "VSE+2AD, RGP": (475.9, 45.3, "none"),
}  # fmt: skip
for name, (total, times, meets) in in_paper.items():
    print(f"{name:13} RSUM {total:.1f}   speed {'–' if times is None else f'{times:.1f} ×':>7}   interaction: {meets}")
assert in_paper["ALIGN"][1] == min(times for _, times, _ in in_paper.values() if times)

# %% [markdown]
# Two things to notice. CLIP and ALIGN are **bi-encoders**, like ours: they have no interaction, and are better than the
# cross-encoders of their table. What made them better is data, not interaction: 400 million pairs and more, against 113,000
# photos. And the paper finds ALIGN the *slowest*, which cannot be a matter of interaction either: once the photos are encoded,
# a query over them is the same dot product as here. That column measures encoding with large networks; the lesson above
# measures what is left when photos are encoded ahead.
#
# ## Exercises
#
# **1.** A sentence of two words, (1, 0) and (0.6, 0.8), and a photo with the cells (0, 1) and (0.6, 0.8). Compute MaxSim by
# hand.
#
# <details><summary>Hint</summary>Four dot products; all vectors have length 1. For each word take the larger of its two, then
# the mean.</details>

# %% tags=["exercise"]
late_score = ...  # your turn

# %% tags=["check"]
check("10.1", late_score)

# %% tags=["solution"]
# Solution
two_words, two_cells = np.array([[1.0, 0.0], [0.6, 0.8]]), np.array([[0.0, 1.0], [0.6, 0.8]])
late_score = ((two_words @ two_cells.T).max(axis=1)).mean()
print("dot products:", (two_words @ two_cells.T).round(2).tolist(), "· MaxSim", round(float(late_score), 2))
assert np.isclose(late_score, max_sim(two_cells, two_words))
check("10.1", late_score)

# %% [markdown]
# **2.** A cross-encoder compares 2,000 pairs a second. How many seconds does one query take over a million photos, if it
# compares all of them? And if a first stage (whose time we neglect) leaves it 100 candidates?
#
# <details><summary>Hint</summary>Pairs divided by pairs per second.</details>

# %% tags=["exercise"]
seconds_alone, seconds_reranking = ..., ...  # your turn

# %% tags=["check"]
check("10.2", seconds_alone, seconds_reranking)

# %% tags=["solution"]
# Solution
seconds_alone, seconds_reranking = 1_000_000 / 2000, 100 / 2000
print(f"{seconds_alone / 60:.0f} minutes, or {1000 * seconds_reranking:.0f} milliseconds")
check("10.2", seconds_alone, seconds_reranking)

# %% [markdown]
# **3.** Write `ceiling_of(first, n)`: the highest R@1 (in per cent, text → image) that *any* second stage could reach with n
# candidates of these first-stage similarities (captions × photos; `belongs` says which photo is right).
#
# <details><summary>Hint</summary>A perfect second stage finds the right photo whenever the first stage has it among its n.
# <code>first.topk(n, dim=1).indices</code>.</details>

# %% tags=["exercise"]
ceiling_of = ...  # your turn: a function of (first, n)

# %% tags=["check"]
check("10.3", ceiling_of, first=first, belongs=belongs)


# %% tags=["solution"]
# Solution
def ceiling_of(first: torch.Tensor, n: int) -> float:
    return float(100 * (first.topk(n, dim=1).indices == belongs[:, None]).any(dim=1).float().mean())


print("the dashed line of the figure:", np.allclose([ceiling_of(first, n) for n in candidates], ceiling))
check("10.3", ceiling_of, first=first, belongs=belongs)

# %% [markdown]
# ## Five questions
#
# Choose, then unfold what you chose: every option says why it is right or wrong.

# %%
quiz("10_interaction")

# %% [markdown]
# ## What the paper says, what we see
#
# | the paper | here |
# |---|---|
# | Models without interaction are an order of magnitude faster (section 4.4) | More than that for a query, once the photos are encoded: see the pairs per second. |
# | VSE+2AD is better than two of six pretrained models and close to a third, without any interaction | CLIP and ALIGN have no interaction either. The table compares amounts of data more than kinds of interaction. |
# | Complex interaction is not needed | Small heads on the same frozen features cannot decide that. Two stages combine both, where the second one orders better than the first; ours do not. |
#
# Next: [a million pictures](11_million.ipynb).
#
# ## References
#
# - Zhang et al., *Improving Visual-Semantic Embedding with Adaptive Pooling and Optimization Objective*, EACL 2023,
#   [arXiv:2210.02206](https://arxiv.org/abs/2210.02206), section 4.4.
# - Lee et al., *Stacked Cross Attention for Image-Text Matching* (SCAN), ECCV 2018, [arXiv:1803.08024](https://arxiv.org/abs/1803.08024).
# - Khattab and Zaharia, *ColBERT*, SIGIR 2020, [arXiv:2004.12832](https://arxiv.org/abs/2004.12832): MaxSim.
# - Radford et al., *Learning Transferable Visual Models From Natural Language Supervision* (CLIP), ICML 2021,
#   [arXiv:2103.00020](https://arxiv.org/abs/2103.00020).
