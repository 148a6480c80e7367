# %% [markdown]
# # 1 · Five-minute tour
#
# Type a sentence, get pictures. Give a picture, get sentences. A model that can do both puts pictures and sentences
# into **one space**, where things that belong together lie close together. This lesson uses such a model before any
# of it is explained, and then explains the one number that you see everywhere: the cosine.
#
# **You will learn** to search a gallery both ways; to compute a cosine by hand and to know what it means; that a
# search is one matrix product; and what the other lessons are about.
#
# **Time**: 5 minutes to look, 15 more for the exercises. **You need**: a little Python, vectors.

# %%
import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
import torch
from IPython.display import clear_output, display
from matplotlib_inline.backend_inline import set_matplotlib_formats

from vse_demo import plots
from vse_demo.encoders import pad_tokens
from vse_demo.shipped import gallery_photo, load_shipped
from vse_demo.teaching import check, quiz, reveal

set_matplotlib_formats("jpeg", pil_kwargs={"quality": 85, "subsampling": 0})  # photos take a fifth of PNG's room

# %% [markdown]
# ## The idea in one figure
#
# Blue is for pictures, orange for sentences. A photo becomes N cells, a sentence becomes M words, each a vector of D
# numbers. **Pooling** makes one vector out of many. From there on a photo and a sentence are the same kind of thing:
# a point in the joint space. Two points can be compared (search), and a wrong order can be corrected (training).

# %%
plots.plot_pipeline()
plt.show()

# %% [markdown]
# The upper and the lower row never meet before the joint space. The photo is encoded without knowing the question, so
# it can be encoded once and kept. That has been done here for a gallery of free photos with five captions each. The
# model was trained on other photos and has never seen these.

# %%
gallery = load_shipped("grid-minilm")
print(len(gallery.names), "photos,", len(gallery.captions), "captions")
print("a photo is", gallery.image_vectors.shape[1], "numbers, and so is a caption")
assert gallery.image_vectors.shape[1] == gallery.caption_vectors.shape[1]


# %% [markdown]
# ## A sentence → pictures
#
# Ask for something. The five nearest photos come back, best first, and the number above each says how near it is.


# %%
def show_images(sentence: str, right: int | None = None) -> None:
    """The five nearest photos; with `right`, the number of the true photo, ticked or crossed."""
    hits = gallery.search_images(sentence, k=5)
    marks = [None if right is None else hit.index == right for hit in hits]
    plots.plot_retrieved_images(sentence, [gallery_photo(hit.item) for hit in hits], [hit.score for hit in hits], marks)
    plt.show()


show_images("musicians play on a stage")

# %% [markdown]
# Your turn: type a sentence into the box and press Enter. (The box needs a running notebook; as a web page this lesson
# shows the answer above only.)

# %%
box = widgets.Text(placeholder="a sentence, then Enter", continuous_update=False, layout={"width": "60%"})
answer = widgets.Output()


def on_sentence(change: dict) -> None:
    with answer:
        clear_output(wait=True)
        if change["new"].strip():
            show_images(change["new"])


box.observe(on_sentence, names="value")
display(box, answer)

# %% [markdown]
# ## What the number is: a cosine, by hand
#
# Take two vectors in the plane, **a** = (3, 4) and **b** = (4, 3). Both have length 5, since 3² + 4² = 25. Divide by
# the length, and what is left is the *direction*, a vector of length 1:
#
# a → (0.6, 0.8) and b → (0.8, 0.6).
#
# Multiply entry by entry and add up. That is the **cosine** of the angle between them:
#
# 0.6 · 0.8 + 0.8 · 0.6 = 0.48 + 0.48 = **0.96**.
#
# Same direction gives 1, a right angle gives 0, opposite directions give −1. A third vector, **c** = (−4, 3), stands
# at a right angle to a.

# %%
a, b, c = np.array([3.0, 4.0]), np.array([4.0, 3.0]), np.array([-4.0, 3.0])
unit_a, unit_b, unit_c = a / np.linalg.norm(a), b / np.linalg.norm(b), c / np.linalg.norm(c)
print("a and b:", round(float(unit_a @ unit_b), 2), "  a and c:", round(abs(float(unit_a @ unit_c)), 2))
assert np.isclose(unit_a @ unit_b, 0.96) and np.isclose(unit_a @ unit_c, 0)

# %% tags=["drawing"]
figure, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
angles = np.linspace(0, np.pi, 100)
ax.plot(np.cos(angles), np.sin(angles), color="#BBBBBB")
for name, vector, colour in zip("abc", (unit_a, unit_b, unit_c), (plots.PALETTE[4], plots.PALETTE[5], "black")):
    arrow = {"arrowstyle": "-|>", "color": colour, "lw": 2, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", vector, (0, 0), arrowprops=arrow)
    label = f"{name} = ({vector[0]:.1f}, {vector[1]:.1f})".replace("-", "−")
    ax.text(*(1.06 * vector), label, color=colour, ha="left" if vector[0] > 0 else "right", fontsize=11)
ax.set(xlim=(-1.7, 1.7), ylim=(-0.05, 1.12), aspect="equal", title="Small angle: large cosine")
ax.axis("off")
plt.show()

# %% [markdown]
# For unit vectors the cosine also tells the distance: ‖a − b‖² = 2 − 2 cos. Here (−0.2)² + 0.2² = 0.08, and
# 2 − 2 · 0.96 = 0.08. So "the largest cosine" and "the shortest distance" are the same photo.

# %%
for one, other in ((unit_a, unit_b), (unit_a, unit_c), (unit_b, unit_c)):
    assert np.isclose(((one - other) ** 2).sum(), 2 - 2 * one @ other)

# %% [markdown]
# ## The same with the model
#
# The model's vectors have hundreds of numbers instead of two, and length 1 already. Everything else is as above.

# %%
sentence = "musicians play on a stage"
best = gallery.search_images(sentence, k=1)[0]
text_vector = gallery.model.encode_texts([sentence])[0]
image_vector = gallery.model.encode_images([gallery_photo(best.item)])[0]
print("lengths:", round(float(text_vector.norm()), 2), round(float(image_vector.norm()), 2))
by_hand = float((text_vector * image_vector).sum())  # multiply entry by entry, add up
assert abs(by_hand - best.score) < 0.01  # the kept vectors are rounded a little
assert abs(by_hand - float(gallery.model.similarity([gallery_photo(best.item)], [sentence]))) < 1e-4

# %% [markdown]
# Here is the first figure once more, with this photo, this sentence and the model's real numbers: cells and words,
# pooled vectors, their products, and the sum of the products.

# %%
with torch.inference_mode():
    grid_features = gallery.model.read_image_features([gallery_photo(best.item)])
    cells = gallery.model.image_encoder(grid_features, torch.ones(grid_features.shape[:2], dtype=torch.bool))[0]
    word_features = gallery.model.text_encoder(*pad_tokens(gallery.model.tokenizer.encode([sentence])))[0]
pieces = gallery.model.tokenizer.tokens(sentence)
vectors = image_vector.numpy(), text_vector.numpy()
plots.plot_worked_pipeline(gallery_photo(best.item), cells.numpy(), pieces, word_features.numpy(), *vectors)
plt.show()

# %% [markdown]
# (`[CLS]` and `[SEP]` are put around every sentence; lesson 2 comes back to them.) No single dimension decides: hundreds
# of small products add up.
#
# A **search** is that cosine for all photos at once: the matrix of photos times the vector of the sentence, then the
# five largest.

# %%
cosines = gallery.image_vectors @ text_vector  # (photos, D) times (D) is one cosine per photo
nearest = cosines.topk(5).indices.tolist()
assert nearest == [hit.index for hit in gallery.search_images(sentence, k=5)]
print(tuple(gallery.image_vectors.shape), "times", tuple(text_vector.shape), "gives", tuple(cosines.shape))

# %% [markdown]
# **Guess first.** Where do the cosines of this sentence with *all* photos lie? Most of them (a) near 0, (b) near 0.5,
# (c) spread evenly from −1 to 1. Write your letter in place of the dots.

# %% tags=["guess"]
my_guess = ...  # "a", "b" or "c"

# %%
figure, ax = plt.subplots(figsize=(7, 2.8), layout="constrained")
ax.hist(cosines.numpy(), bins=40, color=plots.IMAGE)
ax.axvline(float(cosines[nearest[-1]]), color="black", lw=2)
ax.text(float(cosines[nearest[-1]]), 1.02, "the five nearest →", ha="center", transform=ax.get_xaxis_transform())
ax.set(xlabel=f"cosine with “{sentence}”", ylabel="photos")
ax.set_title("Most photos are far from any one sentence", pad=24)
plt.show()
assert abs(float(cosines.median())) < 0.25 and float(cosines.std()) < 0.25
reveal("1.1", my_guess)

# %% [markdown]
# So a cosine that looks small can still be a clear answer. What counts is how far it is above the rest.

# %% [markdown]
# ## A caption of the gallery → its own picture?
#
# For a caption of the gallery we know the answer: the photo it was written for. So the result can be marked, a green
# tick for its own photo and a cross for the others. Here we take the first caption that finds its own photo among the
# nearest five. How often does that happen? Count it over all captions.
#
# **Guess first.** Of all captions, how many find their own photo among the five nearest? (a) Fewer than a third, (b) between
# a third and two thirds, (c) more than two thirds.

# %% tags=["guess"]
my_guess = ...  # "a", "b" or "c"

# %%
image_ids = torch.from_numpy(gallery.image_ids)  # the photo of each caption
similarities = gallery.caption_vectors @ gallery.image_vectors.T  # (captions, photos)
found = (similarities.topk(5, dim=1).indices == image_ids[:, None]).any(dim=1)
chosen = int(found.nonzero()[0])
show_images(gallery.captions[chosen], right=int(image_ids[chosen]))

share, chance = float(found.float().mean()), 5 / len(gallery.names)
print(f"own photo among the five nearest: {share:.0%} of all captions; by guessing {chance:.0%}")
assert share > 5 * chance
seen = "a" if share < 1 / 3 else "b" if share < 2 / 3 else "c"
reveal(seen, my_guess, "None of these photos was among those that the model learned from.")

# %% [markdown]
# Look at the crosses. What do they share with the sentence, and which word of it did they miss? Sometimes a cross is
# not even a mistake: the photo fits the sentence, it is just not the one that the sentence was written for. [Lesson 7](07_evaluation.ipynb) counts properly, and
# [lesson 9](09_case_study.ipynb) looks at failures.
#
# ## A picture → captions
#
# The other way round it is the same product, read by column. Each photo has five captions of its own among all those
# of the gallery. Here is the first photo that gets three of them right; how many get at least one?
#
# **Guess first.** The share of photos with a caption of their own among the five nearest, beside the share of captions that
# you have just seen, is (a) clearly smaller, (b) within five points of it, (c) clearly larger.

# %% tags=["guess"]
my_guess = ...  # "a", "b" or "c"

# %%
per_photo = similarities.topk(5, dim=0).indices.T  # (photos, 5): the nearest captions
own = (image_ids[per_photo] == torch.arange(len(gallery.names))[:, None]).sum(dim=1)
number = int((own == 3).nonzero()[0])
photo = gallery_photo(gallery.names[number])
hits = gallery.search_captions(photo, k=5)
marks = [int(image_ids[hit.index]) == number for hit in hits]
plots.plot_retrieved_captions(photo, [hit.item for hit in hits], [hit.score for hit in hits], marks)
plt.show()

at_least_one = float((own > 0).float().mean())
print(f"at least one own caption among the five nearest: {at_least_one:.0%} of all photos")
assert at_least_one > 0.5
seen = "c" if at_least_one > share + 0.05 else "a" if at_least_one < share - 0.05 else "b"
reveal(seen, my_guess, "A photo has five right answers, among five times as many candidates.")

# %% [markdown]
# `search_captions` takes any picture, also one of yours: `gallery.search_captions("my_photo.jpg")`.
#
# ## Exercises
#
# **1.** The vectors (1, 2) and (2, 1) are not of length 1. What is their cosine? Write a function for any two vectors.
#
# <details><summary>Hint</summary>Divide the dot product by both lengths. Both lengths are √5.</details>

# %% tags=["exercise"]
cosine = ...  # your turn: a function of two vectors

# %% tags=["check"]
check("1.1", cosine)


# %% tags=["solution"]
# Solution
def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


one, other = np.array([1.0, 2.0]), np.array([2.0, 1.0])
print("cosine:", round(cosine(one, other), 2))
assert np.isclose(cosine(one, other), 4 / 5)
assert np.isclose(cosine(10 * one, other), 4 / 5)  # the length does not matter
check("1.1", cosine)

# %% [markdown]
# **2.** Do two captions of the *same* photo find the same pictures? Compare the five nearest photos of the first two
# captions of each photo: how many do they share, on average? And how many for captions of two *different* photos?
#
# <details><summary>Hint</summary><code>np.flatnonzero(gallery.image_ids == p)[:2]</code> gives the first two captions of
# photo p, <code>similarities.topk(5, dim=1).indices</code> the nearest photos of every caption. Sets have
# <code>&amp;</code>.</details>

# %% tags=["exercise"]
same_photo, different_photos = ..., ...  # your turn: two averages, from 0 to 5

# %% tags=["check"]
check("1.2", same_photo, different_photos, similarities=similarities, image_ids=gallery.image_ids)

# %% tags=["solution"]
# Solution
nearest_photos = [set(row) for row in similarities.topk(5, dim=1).indices.tolist()]
firsts, seconds = zip(*(np.flatnonzero(gallery.image_ids == p)[:2] for p in range(len(gallery.names))), strict=True)
same_photo = np.mean([len(nearest_photos[i] & nearest_photos[j]) for i, j in zip(firsts, seconds, strict=True)])
half = len(seconds) // 2  # not the next photo: the gallery is ordered by subject, so neighbours are alike
shifted = seconds[half:] + seconds[:half]
different_photos = np.mean([len(nearest_photos[i] & nearest_photos[j]) for i, j in zip(firsts, shifted, strict=True)])
print(f"shared of five: {same_photo:.1f} for the same photo, {different_photos:.1f} for different photos")
assert same_photo > different_photos
check("1.2", same_photo, different_photos, similarities=similarities, image_ids=gallery.image_ids)

# %% [markdown]
# **3.** Search for two things at once. Add the vectors of "a boat" and "a beach" and search with the sum. Show that
# the photos come out in the order of the *sum of the two cosines*. Does it matter that the sum is not of length 1?
#
# <details><summary>Hint</summary>(s + t) · v = s · v + t · v, for every photo v. Dividing s + t by its length divides
# all scores by the same number.</details>

# %% tags=["exercise"]
boat, beach = gallery.model.encode_texts(["a boat", "a beach"])
both = ...  # your turn

# %% tags=["check"]
check("1.3", both, boat=boat, beach=beach, image_vectors=gallery.image_vectors)

# %% tags=["solution"]
# Solution
boat, beach = gallery.model.encode_texts(["a boat", "a beach"])
both = torch.nn.functional.normalize(boat + beach, dim=0)
sum_of_cosines = gallery.image_vectors @ boat + gallery.image_vectors @ beach
scaled = gallery.image_vectors @ both * (boat + beach).norm()
assert torch.allclose(scaled, sum_of_cosines, atol=1e-5)  # so the order is the same; the length changes nothing
scores, best_for_both = (gallery.image_vectors @ both).topk(3)
photos = [gallery_photo(gallery.names[number]) for number in best_for_both]
plots.plot_retrieved_images("a boat", photos, scores.tolist(), [None] * 3, note="+ “a beach”")
plt.show()
check("1.3", both, boat=boat, beach=beach, image_vectors=gallery.image_vectors)

# %% [markdown]
# ## Five questions
#
# Choose, then unfold what you chose: every option says why it is right or wrong.

# %%
quiz("01_tour")

# %% [markdown]
# ## What the paper says, what we see
#
# | the paper | here |
# |---|---|
# | Pictures and texts are encoded apart, so the vectors can be made ahead and a search is only a similarity and a ranking (sections 2 and 4.4) | Yes: the photos' vectors came from disk, and the search was one matrix product, asserted above. |
# | The similarity is the cosine (section 3.1) | The same. The vectors have length 1, so it is a dot product. |
# | Some of the answers that count as wrong are sensible (section 4.6) | Look at the crosses in the figures, and judge for yourself. |
#
# ## The course
#
# | lesson | what it is about | box of the figure |
# |---|---|---|
# | [1 · Five-minute tour](01_tour.ipynb) | search both ways, the cosine | all of them |
# | [2 · Pooling](02_pooling.ipynb) | from many vectors to one: sort → weighted sum | AdPool |
# | [3 · AdPool](03_adpool.ipynb) | weights that are learned | AdPool |
# | [4 · Alignment and uniformity](04_alignment_uniformity.ipynb) | two numbers that say how good a space is | joint space |
# | [5 · AdOpt](05_adopt.ipynb) | learning from the K hardest negatives, with a K that adapts | AdOpt |
# | [6 · Training](06_train.ipynb) | a small model, trained by you | all of them |
# | [7 · Evaluation](07_evaluation.ipynb) | Recall@K and RSUM, and how to count fairly | cosine |
# | [8 · The joint space](08_joint_space.ipynb) | a map of the space that was learned | joint space |
# | [9 · Case study](09_case_study.ipynb) | which words and which cells made a match | cosine, backwards |
# | [10 · None, late or early interaction](10_interaction.ipynb) | what it costs to let the two rows meet earlier | the empty space between the rows |
# | [11 · A million pictures](11_million.ipynb) | search and training when one machine is not enough | all of them, many times |
#
# Next: [how many vectors become one](02_pooling.ipynb).
#
# ## References
#
# - Zhang et al., *Improving Visual-Semantic Embedding with Adaptive Pooling and Optimization Objective*, EACL 2023,
#   [arXiv:2210.02206](https://arxiv.org/abs/2210.02206).
# - Faghri et al., *VSE++: Improving Visual-Semantic Embeddings with Hard Negatives*, BMVC 2018,
#   [arXiv:1707.05612](https://arxiv.org/abs/1707.05612): the model family in its simplest form.
# - The photos: see `assets/gallery/ATTRIBUTION.csv` for author and licence of each.
