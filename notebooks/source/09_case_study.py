# %% [markdown]
# # 9 · Case study: why did it match?
#
# A score says *that* a photo and a sentence match. This lesson asks *where the score comes from*: how much of it each
# word brought, and how much each cell of the photo. With AdPool this question has an exact answer, because a pooled
# vector is a weighted sum of rows. We look at a success and at a failure, both chosen by code, and then at what such
# an answer does not tell.
#
# **You will learn** to draw the paper's figure of ticks and crosses for any gallery; to split a score over words and
# cells by hand, and with `explain`; to read a heat map without reading too much into it; and how the part of a word
# differs from what happens when you leave the word out.
#
# **Time**: 35 minutes. **You need**: lessons [1](01_tour.ipynb), [2](02_pooling.ipynb) and [3](03_adpool.ipynb).

# %%
import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
import torch
from IPython.display import clear_output, display
from matplotlib_inline.backend_inline import set_matplotlib_formats
from PIL import Image, ImageDraw

from vse_demo import AdPool, explain, plots, retrieval_ranks
from vse_demo.encoders import pad_tokens
from vse_demo.shipped import gallery_photo, load_shipped
from vse_demo.teaching import check, quiz, reveal

set_matplotlib_formats("jpeg", pil_kwargs={"quality": 85, "subsampling": 0})  # photos take a fifth of PNG's room

# %% [markdown]
# ## Choose by rule, not by taste
#
# It is easy to pick a pretty example. So let the code pick. The **margin** of a caption is the cosine with its own
# photo, minus the cosine with the best other photo. The success of this lesson is the caption with the largest margin.
# The failure is the caption whose own photo has the worst rank.

# %%
gallery = load_shipped("grid-minilm")
model = gallery.model
image_ids = torch.from_numpy(gallery.image_ids)  # the photo of each caption
similarities = gallery.caption_vectors @ gallery.image_vectors.T  # (captions, photos)
own = similarities.gather(1, image_ids[:, None])[:, 0]
best_other = similarities.scatter(1, image_ids[:, None], -2.0).max(dim=1)
margin = own - best_other.values
_, ranks = retrieval_ranks(similarities, image_ids)

success, failure = int(margin.argmax()), int(ranks.argmax())
print("success:", gallery.captions[success])
print("failure:", gallery.captions[failure])
print(f"rank of the own photo: {int(ranks[success])} and {int(ranks[failure])} of {len(gallery.names)}")
assert ranks[success] == 1 and margin[success] > 0 > margin[failure]

# %% [markdown]
# ## The idea in one figure
#
# Left: the photo and the parts that its cells bring to the score. Right: the parts that the words bring. Green helps,
# vermilion hurts. Both sides are complete accounts of the **same** number: all cells add up to the score, and so do all
# words.

# %%
photo = gallery_photo(gallery.names[image_ids[success]])
found = explain(model, photo, gallery.captions[success])
assert abs(float(found.image.parts.sum()) - found.score) < 1e-4
assert abs(float(found.text.parts.sum()) - found.score) < 1e-4

# %% tags=["drawing"]
figure, axes = plt.subplots(1, 3, figsize=(13, 4.6), layout="constrained", width_ratios=(1, 1, 0.9))
axes[0].imshow(photo)
axes[0].axis("off")
axes[0].set_title("the photo")
plots.plot_heat_map(photo, found.heat_map, ax=axes[1], label="part of the score").set_title("what its cells bring")
plots.plot_word_parts(found.words, found.text.parts, ax=axes[2]).set_title("what the words bring")
plt.show()

# %%
side = found.heat_map.shape[0]
strongest = [found.words[piece] for piece in found.text.parts.topk(3).indices]
two = float(found.text.parts.topk(2).values.sum()) / found.score
print(f"the largest parts: {', '.join(strongest)}; two of {len(found.words)} pieces bring {two:.0%} of the score")
quarter = len(found.image.parts) // 4
largest = float(found.image.parts.topk(quarter).values.sum()) / found.score
print(f"a quarter of the {len(found.image.parts)} cells brings {largest:.0%} of it")
assert two > 1.8 * 2 / len(found.words) and largest > 0.4  # some count far more than others

# %% [markdown]
# A few pieces and a few cells bring far more than their share of the score. Does the sentence name something that fills much of the photo and yet
# hardly counts? Look for it in the map: what a sentence *says* and what a score is *made of* are two things.
#
# The text encoder reads *subwords*: a rare word comes in pieces, the later ones marked `##`, and `[CLS]` and `[SEP]`
# frame the sentence. Each piece is a row, so each has a part.
#
# ## The paper's figure, on our gallery
#
# The case study of the paper shows what a query finds, with ticks for the ground truth and crosses for the rest. First
# the success, a sentence that looks for its photo:


# %%
def show_images(caption: int) -> None:
    """The five photos nearest to a caption, its own ticked and the others crossed; its own last if not among them."""
    hits, mine = gallery.search_images(gallery.captions[caption], k=5), int(image_ids[caption])
    numbers, scores = [hit.index for hit in hits], [hit.score for hit in hits]
    if mine not in numbers:
        numbers, scores = [*numbers, mine], [*scores, float(own[caption])]
    photos = [gallery_photo(gallery.names[number]) for number in numbers]
    plots.plot_retrieved_images(gallery.captions[caption], photos, scores, [number == mine for number in numbers])
    plt.show()


show_images(success)

# %% [markdown]
# A tick in the first place, by the widest margin of the whole gallery. Before you call it a success, look further down the
# list. Has the model understood the kind of thing? The gallery has no second photo of racing cyclists, so ask that of
# another kind: the photos with a dog (two of its five captions or more speak of one), and among their captions again the one
# with the largest margin. **Guess first.** The *other* photos with a dog come (a) right after its own, (b) further down, with
# many others between, (c) no earlier than by chance.

# %% tags=["guess"]
my_guess = ...  # "a", "b" or "c"

# %%
speaks_of_dog = np.array(["dog" in caption.lower() for caption in gallery.captions])
dogs = np.flatnonzero(np.bincount(gallery.image_ids[speaks_of_dog], minlength=len(gallery)) >= 2)
of_dogs = np.flatnonzero(np.isin(gallery.image_ids, dogs))
example = int(of_dogs[margin[of_dogs].argmax()])
order = similarities[example].argsort(descending=True).tolist()
kin = sorted(order.index(photo) + 1 for photo in dogs.tolist() if photo != gallery.image_ids[example])
print(gallery.captions[example])
print(f"own photo at place {int(ranks[example])}; the {len(kin)} others with a dog at places {kin} of {len(gallery)}")
print("second is:", gallery.captions[int((image_ids == order[1]).nonzero()[0])])
middle = np.median(kin)
seen = "a" if middle <= 2 * len(kin) else "c" if middle > len(gallery) / 3 else "b"
reveal(
    seen, my_guess, f"Half of them are behind place {middle:.0f}; by chance that would be place {len(gallery) // 2}."
)

# %% [markdown]
# That is the lesson of this figure. Compare the places of the dogs with chance: so much does the model know of dogs. And look
# at what comes between them: the sentence speaks of other things as well, and they count too. A first place says that *this*
# photo fits the whole sentence best, not that any one word of it was understood. A single success, chosen for its
# margin, shows what a model can do at its best, not how it works.
#
# The other way round: the photo of the cyclists looks for its five captions.

# %%
hits = gallery.search_captions(photo, k=5)
marks = [bool(image_ids[hit.index] == image_ids[success]) for hit in hits]
plots.plot_retrieved_captions(photo, [hit.item for hit in hits], [hit.score for hit in hits], marks)
plt.show()

# %% [markdown]
# And the failure. Five crosses; the photo that the caption was written for is the one on the right, far down the list.

# %%
show_images(failure)
assert ranks[failure] > 100

# %% [markdown]
# Before we ask the model why, ask yourself. Read the caption without the photo: would *you* have found it? Which of
# the crossed photos fit the words? A caption can be vague, or speak of something that the photo only hints at, or use
# a word that the model has hardly seen.
#
# ## The split, by hand
#
# Take a sentence of three words in two dimensions. We sort each column, and the ranks have weights 0.5, 0.3 and 0.2
# (lesson 2). *red* has the largest value of column 1 and the smallest of column 2, so its two weights are 0.5 and 0.2.
# In this way every **rank weight goes back to the word** that holds the rank:
#
# | word | features | weights | weights × features |
# |---|---|---|---|
# | a | (−2, 3) | (0.2, 0.3) | (−0.4, 0.9) |
# | red | (5, −2) | (0.5, 0.2) | (2.5, −0.4) |
# | kite | (3, 7) | (0.3, 0.5) | (0.9, 3.5) |
# | **sum** | | | **(3, 4)** |
#
# The pooled vector is **p** = (3, 4) with length 5. Let the photo be the unit vector **i** = (0.8, 0.6). The score is
#
# p · i / 5 = (3 · 0.8 + 4 · 0.6) / 5 = 0.96.
#
# But p is a sum of three rows, and a dot product of a sum is the sum of the dot products. So each word has its part:
#
# | word | part of the score |
# |---|---|
# | a | (−0.4 · 0.8 + 0.9 · 0.6) / 5 = 0.044 |
# | red | (2.5 · 0.8 − 0.4 · 0.6) / 5 = 0.352 |
# | kite | (0.9 · 0.8 + 3.5 · 0.6) / 5 = 0.564 |
# | **sum** | **0.960** |

# %%
words = ["a", "red", "kite"]
features = np.array([[-2.0, 3.0], [5.0, -2.0], [3.0, 7.0]])
image = np.array([0.8, 0.6])
rank_weights = np.array([0.5, 0.3, 0.2])

rank_of = (-features).argsort(axis=0).argsort(axis=0)  # of each value in its column, from 0
weights = rank_weights[rank_of]
pooled = (weights * features).sum(axis=0)
parts = (weights * features) @ image / np.linalg.norm(pooled)
print("pooled:", pooled.round(2), " parts:", dict(zip(words, parts.round(3).tolist())))
assert np.allclose(pooled, [3, 4]) and np.allclose(parts, [0.044, 0.352, 0.564])
assert np.isclose(parts.sum(), 0.96)

# %% tags=["drawing"]
figure, axes = plt.subplots(1, 4, figsize=(12, 2.4), layout="constrained", width_ratios=(1, 1, 1, 1.2))
values_scale = features.min(), features.max()  # of features and products; weights go from 0 to 1
panels = (
    (features, values_scale, "features"),
    (weights, (0, 1), "weights"),
    (weights * features, values_scale, "product"),
)
for ax, (values, scale, title) in zip(axes, panels):
    plots.plot_matrix(values, words, ["d1", "d2"], ax=ax, limits=scale)
    ax.set_title(title)
plots.plot_word_parts(words, parts, ax=axes[3]).set_title("part of each word")
plt.show()

# %% [markdown]
# In general, for rows $f_n$ with weights $w_n$ (one for each dimension), and the unit vector $t$ of the other side:
#
# $$p = \sum_n w_n \odot f_n, \qquad v = \frac{p}{\lVert p \rVert}, \qquad
# v \cdot t = \sum_n \frac{(w_n \odot f_n) \cdot t}{\lVert p \rVert}.$$
#
# One part per row, nothing left over, no gradient and no approximation. The soft maximum of AdPool is also a weighted
# sum of rows (lesson 3), and so is a mix of the two. So all of AdPool has this form.
#
# ## With the trace of an AdPool
#
# `AdPool` tells its weights when asked for a **trace**. To see our numbers again we need an AdPool that gives the ranks
# the weights 0.5, 0.3 and 0.2. The paper's variant takes the softmax of u · s over the sorted rows u, with a learned
# vector s. Two equations fix the two numbers of s.

# %%
pool = AdPool(dim=2, variant="paper", embedding=False).double()  # the token level alone
rows = torch.tensor(features)
ranked = rows.sort(dim=0, descending=True).values
gaps = ranked[:2] - ranked[2]  # softmax weights hang on differences of scores
wanted = torch.tensor([0.5 / 0.2, 0.3 / 0.2], dtype=torch.float64).log()
with torch.no_grad():
    pool.token_score.weight[0] = torch.linalg.solve(gaps, wanted)
    out, trace = pool(rows[None], return_trace=True)

print("token weights by rank:", [round(weight, 2) for weight in trace.token_weights[0].tolist()])
print("which word holds the rank, column by column:")
for column in (0, 1):
    print(f"  d{column + 1}:", [words[row] for row in trace.order[0, :, column]])
assert np.allclose(trace.input_weights()[0], weights)  # sent back to the words
assert np.allclose(out[0].detach(), [3, 4])

# %% [markdown]
# `trace.input_weights()` does the sending back. It needs no tidy numbers. Here is a whole AdPool, with both levels and
# random weights, in both variants: the weights of each column sum to 1, and the parts add up.

# %%
torch.manual_seed(0)
random_rows, direction = torch.randn(1, 6, 4), torch.nn.functional.normalize(torch.randn(4), dim=0)
for variant in ("paper", "official"):
    with torch.no_grad():
        out, trace = AdPool(dim=4, variant=variant)(random_rows, return_trace=True)
    all_parts = (trace.input_weights() * random_rows)[0] @ direction / out.norm()
    assert torch.allclose(trace.input_weights().sum(dim=1), torch.ones(1, 4))
    assert torch.allclose(all_parts.sum(), out[0] @ direction / out.norm(), atol=1e-6)
    print(f"{variant:8} {len(all_parts)} parts, and their sum is the score")

# %% [markdown]
# ## With the model
#
# Now the same for a real photo and a real sentence. `weighted_rows` gives the rows $w_n \odot f_n / \lVert p \rVert$,
# which add up to the unit vector. A part is then just a dot product with the other side's vector.


# %%
@torch.inference_mode()
def weighted_rows(pooling: AdPool, features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(1, N, D) features -> N rows that add up to the unit vector of the photo or sentence."""
    pooled, trace = pooling(features, mask, return_trace=True)
    return (trace.input_weights() * features)[0] / pooled.norm()


@torch.inference_mode()
def image_rows(photo: Image.Image) -> torch.Tensor:
    grid_features = model.read_image_features([photo])
    mask = torch.ones(grid_features.shape[:2], dtype=torch.bool)
    return weighted_rows(model.image_pooling, model.image_encoder(grid_features, mask), mask)


@torch.inference_mode()
def text_rows(sentence: str) -> torch.Tensor:
    tokens, mask = pad_tokens(model.tokenizer.encode([sentence]))
    return weighted_rows(model.text_pooling, model.text_encoder(tokens, mask), mask)


cells, pieces = image_rows(photo), text_rows(gallery.captions[success])
image_vector, text_vector = cells.sum(dim=0), pieces.sum(dim=0)
cell_parts, word_parts = cells @ text_vector, pieces @ image_vector
print("cells:", tuple(cells.shape))
assert torch.allclose(image_vector.norm(), torch.tensor(1.0), atol=1e-4)
assert torch.allclose(cell_parts.sum(), word_parts.sum(), atol=1e-4)  # the same score, split twice
assert torch.allclose(cell_parts, found.image.parts, atol=1e-4)  # what explain() gave above
assert torch.allclose(word_parts, found.text.parts, atol=1e-4)
assert abs(float(cell_parts.sum()) - float(own[success])) < 0.01  # and what the search found

# %% [markdown]
# Both sides are sums, so the score is also a sum over **pairs** of a word and a cell. The table of all pairs adds up to
# the words' parts along one side and to the cells' parts along the other. Its columns are maps: what the cells bring
# *through one word*. Here are the three pieces with the largest parts.

# %%
table = cells @ pieces.T  # (cells, pieces)
assert torch.allclose(table.sum(dim=1), cell_parts, atol=1e-4)
assert torch.allclose(table.sum(dim=0), word_parts, atol=1e-4)

# %% tags=["drawing"]
figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
for ax, piece in zip(axes, word_parts.topk(3).indices.tolist()):
    label = "part of the score\n(2 % lie beyond)" if ax is axes[2] else ""
    limit = float(table[:, word_parts.topk(3).indices].abs().quantile(0.98))
    heat = table[:, piece].view(side, side)
    plots.plot_heat_map(photo, heat, ax, limit, label).set_title(f"through “{found.words[piece]}”")
plt.show()

# %% [markdown]
# Do the three maps show the same places? Compare them cell by cell:

# %%
alike = np.corrcoef(table[:, word_parts.topk(3).indices].T)[[0, 0, 1], [1, 2, 2]]
print("correlation of each two maps:", ", ".join(f"{value:.1f}" for value in sorted(alike)))
assert alike.min() < 0.9

# %% [markdown]
# They need not: two words can mark the same places while another marks places of its own. And yet the words act together, since
# each of them has read the whole sentence before it is pooled. We come back to that below.

# %% [markdown]
# A sentence that is false shows more. Take the photo of a dog on the grass. There is no sofa in it, and no cat:

# %%
dog = int(image_ids[next(n for n, caption in enumerate(gallery.captions) if "German shepherd" in caption)])
dog_photo = gallery_photo(gallery.names[dog])
true_one = explain(model, dog_photo, "A German shepherd on the grass.")
false_ones = [explain(model, dog_photo, f"{who} sleeps on a red sofa.") for who in ("A German shepherd", "A cat")]
figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.4), layout="constrained", sharex=True)
for ax, told in zip(axes, false_ones):
    plots.plot_word_parts(told.words, told.text.parts, ax=ax).set_title(f"score {told.score:.2f}")
plt.show()
with_dog, with_cat = (float(told.text.parts[told.words.index("sofa")]) for told in false_ones)
print(f"score of a true sentence {true_one.score:.2f}, of the false one about the dog {false_ones[0].score:.2f}")
print(f"part of “sofa”: {with_dog:+.2f} beside a German shepherd, {with_cat:+.2f} beside a cat")
assert true_one.score > false_ones[0].score > false_ones[1].score

# %% [markdown]
# The false sentence about the right dog scores far above the one about a cat: the model does not check a sentence, it adds
# up what fits. And mind *sofa*. There is none, and yet its part depends on who sleeps on it: its row has read the rest of the
# sentence.
#
# Try other sentences for the photo of the success: in a running notebook, type and press Enter.

# %% tags=["nbval-ignore-output"]
box = widgets.Text(placeholder="a sentence, then Enter", continuous_update=False, layout={"width": "60%"})
answer = widgets.Output()


def on_sentence(change: dict) -> None:
    with answer:
        clear_output(wait=True)
        if change["new"].strip():
            told = explain(model, photo, change["new"])
            _, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
            plots.plot_heat_map(photo, told.heat_map, ax=axes[0])
            plots.plot_word_parts(told.words, told.text.parts, ax=axes[1])
            plt.show()


box.observe(on_sentence, names="value")
display(box, answer)

# %% [markdown]
# ## The failure: what tipped the scale?
#
# The failure has two photos: its own, and the wrong one that won. The sentence is the same, so we can subtract the
# parts word by word. The differences add up to the difference of the two scores: how far the own photo is behind.

# %%
winner = int(best_other.indices[failure])
own_photo, wrong_photo = (gallery_photo(gallery.names[number]) for number in (image_ids[failure], winner))
with_own = explain(model, own_photo, gallery.captions[failure])
with_wrong = explain(model, wrong_photo, gallery.captions[failure])
difference = with_own.text.parts - with_wrong.text.parts
assert abs(float(difference.sum()) - (with_own.score - with_wrong.score)) < 1e-4
assert with_own.score < with_wrong.score

# %% tags=["drawing"]
figure, axes = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained", width_ratios=(1, 1, 0.9))
limit = float(max(abs(told.heat_map).max() for told in (with_own, with_wrong)))
plots.plot_heat_map(own_photo, with_own.heat_map, axes[0], limit).set_title("its own photo", color=plots.RIGHT)
plots.plot_heat_map(wrong_photo, with_wrong.heat_map, axes[1], limit, "part of the score")
axes[1].set_title("the photo that won", color=plots.WRONG)
plots.plot_word_parts(with_own.words, difference, ax=axes[2]).set_title("own photo minus winner")
axes[2].set_xlabel(f"difference of the parts (they sum to {float(difference.sum()):.2f})")
plt.show()

# %%
most = [with_own.words[piece] for piece in difference.argsort()[:3]]
behind = int((difference < 0).sum())
print(f"{behind} of {len(difference)} pieces prefer the wrong photo; furthest behind: {', '.join(most)}")

# %% [markdown]
# Which pieces prefer the wrong photo is a fact about the score. *Why* they do is a guess, and the maps help to guess: look at
# what is green in the photo that won, and at the pieces that are furthest behind. Could they be taken for another thing? Is
# something green in the right photo, and outweighed by the rest?
#
# The paper's guess for its own failure is another one: that the caption is long and detailed. One example cannot show
# that, but the whole gallery can be counted.

# %%
length = torch.tensor([len(caption.split()) for caption in gallery.captions])
long = length > length.median()
for name, group in (("shorter", ~long), ("longer", long)):
    share = float((ranks[group] <= 5).float().mean())
    print(f"{name} captions: {int(group.sum())}, own photo among the five nearest for {share:.0%}")
shares = [float((ranks[group] <= 5).float().mean()) for group in (~long, long)]
error = np.sqrt(sum(share * (1 - share) / int(group.sum()) for share, group in zip(shares, (~long, long))))
print(f"difference {shares[1] - shares[0]:+.1%}, standard error {error:.1%}")
assert shares[1] > shares[0] - 0.05  # longer captions are not clearly harder

# %% [markdown]
# Compare the difference with its standard error. In this gallery, where captions have 8 to 20 words, longer captions are
# not clearly harder than shorter ones.

# %% [markdown]
# ## What the split does not say
#
# The split is exact, but it is a split over **rows**, and a row is more than the cell or the word it is named after.
#
# **A cell has seen more than its square.** Each cell stands for a square of 32 × 32 pixels, but the convolutions before it
# look further. Test: paint *one* square of a photo grey, and see which cells change. To see the rule and not the
# photo, take the mean over six photos.
#
# **Guess first.** Besides the painted cell, clearly changed are (a) at most the eight cells around it, (b) more than these, but
# less than half of all, (c) more than half of all.

# %% tags=["guess"]
my_guess = ...  # "a", "b" or "c"

# %%
size = model.config.image_size  # the model squeezes every photo to a square
step = size // side
middle = side // 2 - 1
squares = [gallery_photo(name).resize((size, size)) for name in gallery.names[::46]]
painted = [square.copy() for square in squares]
for square in painted:
    start, end = middle * step, (middle + 1) * step - 1
    ImageDraw.Draw(square).rectangle((start, start, end, end), fill=(128, 128, 128))
with torch.inference_mode():
    before, after = model.read_image_features(squares), model.read_image_features(painted)
change = ((after - before).norm(dim=2) / before.norm(dim=2).mean(dim=1, keepdim=True)).mean(dim=0).view(side, side)

# %% tags=["drawing"]
figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.7), layout="constrained")
axes[0].imshow(painted[0])
axes[0].set_title("one square is painted grey")
shown = axes[1].imshow(change, cmap="cividis", vmin=0)
axes[1].add_patch(plt.Rectangle((middle - 0.5, middle - 0.5), 1, 1, fill=False, ec=plots.WRONG, lw=2.5))
axes[1].set_title("how much each cell changes")
figure.colorbar(shown, ax=axes[1], label="change (1 = length of a mean cell)")
for ax in axes:
    ax.set_xticks([])
    ax.set_yticks([])
plt.show()

# %%
around = slice(middle - 1, middle + 2)
sides = [
    float(part.mean())
    for part in (
        change[around, middle - 1],
        change[around, middle + 1],
        change[middle - 1, around],
        change[middle + 1, around],
    )
]
changed = int((change > 0.05).sum())
print(f"cells that change by more than 0.05: {changed} of {side * side}")
print("mean change left, right, above, below:", *(f"{value:.2f}" for value in sides))
assert changed > 40  # far more than the square itself
seen = "a" if changed <= 9 else "b" if changed < side * side / 2 else "c"
reveal(seen, my_guess, "“Clearly” means here: by more than a twentieth of the length of a mean cell.")

# %% [markdown]
# So a green cell means "the feature *at this place* helped", and that feature may describe what is beside it. Nor need the
# change be centred on the square (compare the four sides): a network that pads its maps more on one side than on the other
# shifts what a cell sees. A heat map is blurred, and may be slightly shifted, by nature; do not read it as an outline.
#
# **A word has read the sentence.** In the transformer every piece looks at every other. The clearest signs are the
# pieces that mean nothing by themselves: the frame and the punctuation. They have parts, too.

# %%
empty = torch.tensor([piece in ("[CLS]", "[SEP]", ",", ".") for piece in found.words])
print("pieces without a meaning of their own:", int(empty.sum()), "of", len(found.words))
print(f"they bring {float(found.text.parts[empty].sum()) / found.score:.0%} of the score")
assert found.text.parts[empty].abs().sum() > 0.05 * found.score

# %% [markdown]
# **A part is not an effect.** The weights are fixed in the split, as they came out *with* all rows present. Take a row
# away and the weights of the others change, and so does the length of p. In our toy sentence:

# %%
lines = ["word    part    score lost without it"]
for left_out, word in enumerate(words):
    rest = [row for row in range(3) if row != left_out]
    with torch.no_grad():
        without = pool(rows[None, rest])[0].numpy()
    lost = 0.96 - without @ image / np.linalg.norm(without)
    lines.append(f"{word:5} {parts[left_out]:6.2f} {lost:8.2f}")
    if word == "kite":
        assert abs(lost) < 0.02 < parts[left_out]
print("\n".join(lines))

# %% [markdown]
# *kite* brings more than half of the score, and yet almost nothing is lost without it: *a* and *red* together pool to
# nearly the same direction. Both numbers are right. They answer two questions: **where did this score come from?**
# (the part) and **what if the word were not there?** (the counterfactual).
#
# ## Do the cells with large parts matter?
#
# Here is a counterfactual for cells. Leave cells out of the pooling, those with the largest parts first, and watch the
# score. If the parts meant nothing, the order would not matter.
#
# **Guess first.** Without the quarter of the cells that brought the most, the score loses (a) about as much as they brought,
# (b) about half of that, (c) less than a quarter of that.

# %% tags=["guess"]
my_guess = ...  # "a", "b" or "c"


# %%
@torch.inference_mode()
def score_without(order: torch.Tensor, count: int) -> float:
    """The score when the first `count` cells of an order take no part in the pooling."""
    mask = torch.ones(1, len(order), dtype=torch.bool)
    mask[0, order[:count]] = False
    return float(torch.nn.functional.normalize(model.image_pooling(image_features, mask), dim=1)[0] @ text_vector)


with torch.inference_mode():
    grid_features = model.read_image_features([photo])
    image_features = model.image_encoder(grid_features, torch.ones(grid_features.shape[:2], dtype=torch.bool))
every = len(cell_parts) // 14
counts = list(range(0, 13 * every + 1, every))
orders = {
    "smallest part first": cell_parts.argsort(),
    "in random order": torch.randperm(len(cell_parts), generator=torch.Generator().manual_seed(0)),
    "largest part first": cell_parts.argsort(descending=True),
}
curves = {name: (counts, [score_without(order, count) for count in counts]) for name, order in orders.items()}

# %% tags=["drawing"]
ax = plots.plot_curves(curves, f"cells left out, of {len(cell_parts)}", "score of the success")
ax.set_title("Cells with large parts matter, but less than their parts say")
ax.set_ylim(0, None)
plt.show()

# %%
lost = {name: 1 - np.array(scores) / scores[0] for name, (_, scores) in curves.items()}
print(f"share of the score that is lost without {counts[4]} and without {counts[10]} cells:")
for name, values in lost.items():
    print(f"  {name:20} {values[4]:4.0%} {values[10]:5.0%}")
others = [lost[name][10] for name in ("smallest part first", "in random order")]
assert lost["largest part first"][10] > max(others) + 0.05
assert lost["largest part first"][4] < 0.05 and lost["largest part first"][10] < 0.4
brought = float(cell_parts.topk(counts[4]).values.sum() / cell_parts.sum())
missed = lost["largest part first"][4] / brought
seen = "a" if missed > 0.75 else "b" if missed > 0.25 else "c"
reveal(
    seen,
    my_guess,
    f"They brought {brought:.0%} of the score; without them it changes by {-lost['largest part first'][4]:+.0%}.",
)

# %% [markdown]
# The order matters once more than half of the cells are gone: then those with the largest parts are missed the most. Compare
# what is lost with what they brought, for these and for a quarter of the cells, which are hardly missed at all. The cells that
# are left take over the weight, and each has seen its neighbours. So a part tells where a score came from, and not what would be without it. (This is one photo, of
# course, and the easiest.)
#
# ## Part and counterfactual, for many words
#
# And for words, in 30 captions from all over the gallery. For each word we take its **part** and two counterfactuals:
#
# - *out of the pooling*: the row takes no part, but the other words have read it before;
# - *out of the sentence*: the sentence is read again without the word.


# %%
def group_pieces(pieces: list[str]) -> list[list[int]]:
    """The positions of each word's pieces; the frame is left out."""
    groups: list[list[int]] = []
    for position, piece in enumerate(pieces):
        if piece.startswith("##"):
            groups[-1].append(position)
        elif piece not in ("[CLS]", "[SEP]"):
            groups.append([position])
    return groups


@torch.inference_mode()
def compare(sentence: str, image_vector: torch.Tensor) -> list[tuple[float, float, float]]:
    """For each word: its part, the loss without its row, the loss without the word."""
    [ids] = model.tokenizer.encode([sentence])
    tokens, mask = pad_tokens([ids])
    features = model.text_encoder(tokens, mask)
    parts = weighted_rows(model.text_pooling, features, mask) @ image_vector
    groups = group_pieces(model.tokenizer.tokens(sentence))
    masks = mask.repeat(len(groups), 1)
    for row, group in enumerate(groups):
        masks[row, group] = False
    unpooled = torch.nn.functional.normalize(model.text_pooling(features.expand(len(groups), -1, -1), masks), dim=1)
    shorter = [[number for place, number in enumerate(ids) if place not in group] for group in groups]
    unread = model.embed_tokens(*pad_tokens(shorter))
    score = parts.sum()
    lost_rows, lost_words = score - unpooled @ image_vector, score - unread @ image_vector
    return [(float(parts[group].sum()), float(lost_rows[n]), float(lost_words[n])) for n, group in enumerate(groups)]


sample = range(0, len(gallery.captions), len(gallery.captions) // 30)
by_caption = [compare(gallery.captions[caption], gallery.image_vectors[image_ids[caption]]) for caption in sample]
part, without_row, without_word = np.concatenate(by_caption).T
print("words:", len(part))

# %% tags=["drawing"]
figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained", sharex=True, sharey=True)
for ax, lost, title in zip(axes, (without_row, without_word), ("out of the pooling", "out of the sentence")):
    ax.axline((0, 0), slope=1, color="#777777", lw=1, label="lost = part")
    ax.axhline(0, color="#777777", lw=1, ls=":", label="nothing lost")
    ax.plot(part, lost, "o", ms=4, alpha=0.5, color=plots.TEXT, label="a word")
    ax.set(xlabel="part of the word", title=title)
axes[0].set_ylabel("score lost without the word")
axes[0].legend(frameon=False, loc="lower right")
plt.show()

# %%
for name, lost in (("out of the pooling", without_row), ("out of the sentence", without_word)):
    print(f"{name:20} correlation with the part {np.corrcoef(part, lost)[0, 1]:.1f}")
    assert np.corrcoef(part, lost)[0, 1] > 0.4
assert np.abs(without_row).mean() < np.abs(part).mean()  # the other rows make up for it
assert np.abs(without_row).mean() < np.abs(without_word).mean()

# %% [markdown]
# If parts were effects, all points would lie on the rising line. They do not. On the left little is lost: when a row
# leaves the pooling, the others take over its weight, and they had read the word. On the right the word was never
# there, so the others change as well, and more can be lost, or won. The trend rises in both: a word with a large part
# is more likely to matter. So use the part to *account* for a score and to find a suspect, and the counterfactual to
# *test* the suspect.
#
# ## Exercises
#
# **1.** Max pooling is also a weighted sum of rows. What are the parts of *a*, *red* and *kite* if the toy sentence is
# pooled by max, for the same photo (0.8, 0.6)? Check that they add up.
#
# <details><summary>Hint</summary>Rank weights 1, 0, 0. Which word holds the maximum of each column?</details>

# %% tags=["exercise"]
max_parts = ...  # your turn: three numbers

# %% tags=["check"]
check("9.1", max_parts)

# %% tags=["solution"]
# Solution
max_weights = np.array([1.0, 0.0, 0.0])[rank_of]
max_pooled = (max_weights * features).sum(axis=0)
max_parts = (max_weights * features) @ image / np.linalg.norm(max_pooled)
print(dict(zip(words, max_parts.round(2).tolist())), "sum", round(float(max_parts.sum()), 2))
assert np.allclose(max_pooled, features.max(axis=0))
assert np.isclose(max_parts.sum(), max_pooled @ image / np.linalg.norm(max_pooled))
assert np.allclose(max_parts, np.array([0, 5 * 0.8, 7 * 0.6]) / np.sqrt(74))
check("9.1", max_parts)

# %% [markdown]
# **2.** Take the *photo* with the worst rank in the other direction (photo → caption). Explain its score with the
# wrong caption that won, and name the three pieces of that caption with the largest parts.
#
# <details><summary>Hint</summary><code>retrieval_ranks</code> returns the ranks of the photos first. The winner is the
# largest entry of the photo's column of <code>similarities</code>; <code>explain_pair(photo, caption)</code> explains it.</details>


# %% tags=["exercise"]
def explain_pair(photo: int, caption: int):
    return explain(model, gallery_photo(gallery.names[photo]), gallery.captions[caption])


lost_photo, won, three_pieces = ..., ..., ...  # your turn: number of the photo, of the caption, and three of its pieces

# %% tags=["check"]
check("9.2", lost_photo, won, three_pieces, similarities=similarities, image_ids=image_ids, explain=explain_pair)

# %% tags=["solution"]
# Solution
photo_ranks, _ = retrieval_ranks(similarities, image_ids)
lost_photo = int(photo_ranks.argmax())
won = int(similarities[:, lost_photo].argmax())
assert image_ids[won] != lost_photo
told = explain_pair(lost_photo, won)
three_pieces = [told.words[piece] for piece in told.text.parts.topk(3).indices]
print("the wrong caption:", gallery.captions[won])
print("largest parts:", three_pieces)
assert abs(float(told.text.parts.sum()) - told.score) < 1e-4
check("9.2", lost_photo, won, three_pieces, similarities=similarities, image_ids=image_ids, explain=explain_pair)

# %% [markdown]
# **3.** Test a suspect: the word of the failure whose pieces are furthest behind in `difference`. Leave it out of the
# caption, and see how the rank of its own photo changes. Does the rank have to improve?
#
# <details><summary>Hint</summary>Drop the token numbers at the places of <code>suspect</code>; <code>encode_ids(ids)</code>
# gives a vector. The rank is 1 + the number of photos with a larger cosine.</details>

# %% tags=["exercise"]
[ids] = model.tokenizer.encode([gallery.captions[failure]])
suspect = min(group_pieces(with_own.words), key=lambda group: float(difference[group].sum()))  # its places
target = int(image_ids[failure])


@torch.inference_mode()
def encode_ids(numbers: list[int]) -> torch.Tensor:
    return model.embed_tokens(*pad_tokens([numbers]))[0]


shorter, new_ranks = ..., ...  # your turn: the numbers without the suspect; the rank with it and without

# %% tags=["check"]
check(
    "9.3",
    shorter,
    new_ranks,
    ids=ids,
    suspect=suspect,
    encode=encode_ids,
    image_vectors=gallery.image_vectors,
    target=target,
)

# %% tags=["solution"]
# Solution
shorter = [number for place, number in enumerate(ids) if place not in suspect]
new_ranks = []
for numbers in (ids, shorter):
    cosines = gallery.image_vectors @ encode_ids(numbers)
    new_ranks.append(1 + int((cosines > cosines[target]).sum()))
print("suspect:", "".join(with_own.words[place].removeprefix("##") for place in suspect))
print("rank of the own photo with and without it:", *new_ranks)
assert abs(new_ranks[0] - int(ranks[failure])) <= 5  # the kept vectors are rounded a little
check(
    "9.3",
    shorter,
    new_ranks,
    ids=ids,
    suspect=suspect,
    encode=encode_ids,
    image_vectors=gallery.image_vectors,
    target=target,
)

# %% [markdown]
# ## Five questions
#
# Choose, then unfold what you chose: every option says why it is right or wrong.

# %%
quiz("09_case_study")

# %% [markdown]
# ## What the paper says, what we see
#
# | the paper | here |
# |---|---|
# | Two examples with ticks and crosses; how they were chosen is not said (section 4.6) | The same figure, with examples chosen by a rule: largest margin, worst rank. |
# | Some "wrong" answers are sensible, likely noise in the data (the text swaps the names of its two panels) | Look at the crosses: each caption has one right photo by definition, whatever else fits. |
# | A detailed caption is hard for a model that encodes both sides apart; said of one example | Counted over the gallery: longer captions are not clearly harder than shorter ones. |
# | It does not look inside a score | AdPool's score splits exactly over words and cells, asserted above. A part is not an effect: see the scatter. |
#
# Next: [what if the two sides met earlier?](10_interaction.ipynb) Or try your own photos:
# `vse-demo index --model assets/models/grid-minilm --data my_photos --gallery my_gallery`.
#
# ## References
#
# - Zhang et al., *Improving Visual-Semantic Embedding with Adaptive Pooling and Optimization Objective*, EACL 2023,
#   [arXiv:2210.02206](https://arxiv.org/abs/2210.02206), sections 3.2 and 4.6.
# - Zhou et al., *Learning Deep Features for Discriminative Localization* (CAM), CVPR 2016,
#   [arXiv:1512.04150](https://arxiv.org/abs/1512.04150): the same idea, splitting a score over cells, for mean pooling.
# - Jain and Wallace, *Attention is not Explanation*, NAACL 2019, [arXiv:1902.10186](https://arxiv.org/abs/1902.10186):
#   why weights and effects are different things.
