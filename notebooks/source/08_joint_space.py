# %% [markdown]
# # 8 · The joint space
#
# Photos and sentences become points in one space of 512 dimensions. What does that space look like? Are photos and
# sentences really mixed in it? This lesson draws maps, before training and after, and then checks with numbers what
# the maps suggest. Maps are good for questions and poor for answers.
#
# **You will learn** to draw a UMAP map of both modalities; what the *modality gap* is, how to measure it by hand and
# why retrieval works in spite of it; what happens when the gap is closed; where retrieval fails; and which distances a
# map keeps and which it makes up.
#
# **Time**: 35 minutes. **You need**: [lesson 4](04_alignment_uniformity.ipynb), [lesson 7](07_evaluation.ipynb), means
# and dot products.

# %%
import json

import matplotlib.pyplot as plt
import numpy as np
import torch
import umap
from matplotlib_inline.backend_inline import set_matplotlib_formats
from torch.nn.functional import normalize

from vse_demo import VSE, evaluate, open_dataset, plots, retrieval_ranks
from vse_demo.shipped import gallery_photo, load_shipped
from vse_demo.teaching import check, quiz, reveal, sliders
from vse_demo.utils.paths import shipped

set_matplotlib_formats("jpeg", pil_kwargs={"quality": 85, "subsampling": 0})  # photos take a fifth of PNG's room

# %% [markdown]
# ## The idea in one figure
#
# Four photos and four captions on a sphere. Seen from above, the *content* decides the direction: a photo and its
# caption point the same way. But all photos sit at the top and all captions at the bottom. The distance between the
# two rings is a **modality gap**: the space knows what a point shows, and also whether it is a photo or a sentence.


# %%
def ring(degrees: list[float], height: float) -> np.ndarray:
    """Unit vectors in three dimensions: content is the direction seen from above, height is the modality."""
    angle = np.deg2rad(degrees)
    radius = np.sqrt(1 - height**2)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle), np.full(len(angle), height)], axis=1)


images = ring([0, 90, 180, 270], height=0.6)
texts = ring([0, 90, 180, 270], height=-0.6)
print("lengths:", np.linalg.norm(np.concatenate([images, texts]), axis=1).round(2))

# %% tags=["drawing"]
figure = plt.figure(figsize=(5, 4.2), layout="constrained")
ax = figure.add_subplot(projection="3d", computed_zorder=False)
around = list(range(0, 361, 5))
for points, height, colour, name in ((images, 0.6, plots.IMAGE, "images"), (texts, -0.6, plots.TEXT, "texts")):
    ax.plot(*ring(around, height).T, color=colour, lw=0.8)
    ax.scatter(*points.T, color=colour, s=50, depthshade=False, label=name)
for pair in np.stack([images, texts], axis=1):
    ax.plot(*pair.T, color="#999999", lw=1)
ax.set(xticks=[], yticks=[], zticks=[], zlabel="modality (gap 1.2)", box_aspect=(1, 1, 0.9))
ax.view_init(elev=18, azim=-60)
ax.legend(frameon=False, loc="upper right")
plt.show()

# %% [markdown]
# ## By hand: the gap does not spoil the order
#
# On each ring the radius is √(1 − 0.6²) = 0.8. So the cosine of a photo and a caption whose contents differ by an
# angle θ is 0.8 · 0.8 · cos θ + 0.6 · (−0.6) = 0.64 · cos θ − 0.36.

# %%
similarities = texts @ images.T
print("the same content: 0.64 - 0.36 =", round(0.64 - 0.36, 2))
print("a quarter turn:      0 - 0.36 =", -0.36)
plots.plot_matrix(similarities, [f"text {i}" for i in range(1, 5)], [f"image {i}" for i in range(1, 5)], digits=2)
plt.show()
assert np.allclose(similarities[0], [0.28, -0.36, -1.0, -0.36])
assert (similarities.argmax(axis=1) == np.arange(4)).all()

# %% [markdown]
# Every caption still prefers its own photo. The gap takes 0.36 from *all* similarities, and ranks do not care about a
# constant. Now measure it: the centre of the photos, the centre of the captions, and the vector between them. The sign of
# the projection on that vector tells the modalities apart. And if each side moves half of the way, the gap is closed.

# %%
gap = images.mean(axis=0) - texts.mean(axis=0)
print("centre of images:", images.mean(axis=0).round(2) + 0.0)
print("centre of texts: ", texts.mean(axis=0).round(2) + 0.0)
print("gap:", np.linalg.norm(gap).round(2))
assert (images @ gap > 0).all() and (texts @ gap < 0).all()


def l2_normalize(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


closed = l2_normalize(texts + gap / 2) @ l2_normalize(images - gap / 2).T
print("closed, text 1 with each image:", closed[0].round(2) + 0.0)
assert np.allclose(closed[0], [1, 0, -1, 0])

# %% [markdown]
# ## The trained space
#
# Back to many dimensions: the gallery of 276 photos with five captions each, as the shipped model sees them. It has not
# seen any of them in training. Each photo has a subject, which the model has never been told.

# %%
gallery = load_shipped("grid-minilm")
model = gallery.model
image_vectors, caption_vectors = gallery.image_vectors, gallery.caption_vectors
image_ids = torch.from_numpy(gallery.image_ids)
records = json.loads((shipped("gallery") / "captions.json").read_text(encoding="utf-8"))["images"]
subject_of = {record["filename"]: record["subject"] for record in records}
subjects = np.array([subject_of[name] for name in gallery.names])
print("photos:", tuple(image_vectors.shape), " captions:", tuple(caption_vectors.shape))
print("subjects:", ", ".join(sorted(set(subjects))))

# %% [markdown]
# **UMAP** makes a map of such points: it looks up the nearest neighbours of each point, and then arranges all points
# in a plane so that neighbours stay together. Two things to set: how many neighbours (15 is usual) and the distance
# (the cosine is the one we search with). It draws random numbers, so it gets a fixed `random_state`. Even so the map
# on your screen may be turned or folded differently from the stored one: the rounding of another CPU is enough.


# %% tags=["figure-varies"]
def draw_map(images: np.ndarray, texts: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Places in the plane of images and of texts, from one common map."""
    # With a seed UMAP runs on one core. It warns about that unless it is asked to: n_jobs=1.
    mapper = umap.UMAP(n_neighbors=15, metric="cosine", init="pca", random_state=seed, n_jobs=1)
    places = mapper.fit_transform(np.concatenate([images, texts]))
    return places[: len(images)], places[len(images) :]


map_images, map_texts = draw_map(image_vectors.numpy(), caption_vectors.numpy())
figure, ax = plt.subplots(figsize=(9, 6.4), layout="constrained")
FIVE = ("birds", "buildings", "food", "people", "water")  # of fifteen: more colours than that cannot be told apart
plots.plot_space(map_images, map_texts, gallery.image_ids, subjects, ax=ax, shown=FIVE)
ax.set_title("276 photos (five subjects in colour) and 1,380 captions (orange)")
plt.show()

# %% [markdown]
# Each thin line joins a caption of the five subjects to its photo. Three things to look for: do photos of one subject keep
# together? Are most lines short, and do some cross the whole map (captions that ended up far from their photo)? Are
# photos evenly mixed with captions? A map can deceive, so count: how often do two neighbours on the map, a photo and the
# photo next to it, have the same subject?

# %%
apart = np.linalg.norm(map_images[:, None] - map_images[None], axis=2)
np.fill_diagonal(apart, np.inf)
same_subject = (subjects[apart.argmin(axis=1)] == subjects).mean()
by_chance = np.mean([(subjects == subject).sum() - 1 for subject in subjects]) / (len(subjects) - 1)
print("neighbours of the same subject, more than three times as often as by chance:", same_subject > 3 * by_chance)
assert same_subject > 3 * by_chance

# %% [markdown]
# ## Before training
#
# How much of that was there from the start? We build the same architecture again. The two backbones (which come
# pretrained) are copied; the projections and AdPools, which the training had to learn, get random weights. (Not those of
# seed 0: the training began with them, and the backbones, which were fine-tuned too, have learned to fit them.) To save
# time we take the 69 test photos, compute their cells once, and send the same cells through both models.

# %% tags=["figure-varies"]
torch.manual_seed(1)
untrained = VSE(model.config, model.tokenizer).eval()
for part in ("image_encoder", "text_encoder"):
    getattr(untrained, part).backbone.load_state_dict(getattr(model, part).backbone.state_dict())

test = open_dataset().split("test")
test_image_ids = torch.from_numpy(test.image_ids)
test_subjects = [subject_of[name] for name in test.names]
with torch.inference_mode():
    grid_features = torch.cat([model.read_image_features(test.images[start : start + 23]) for start in (0, 23, 46)])
    before = untrained.embed_image_features(grid_features), untrained.encode_texts(test.captions)
    after_images = model.embed_image_features(grid_features)
in_gallery = [gallery.names.index(name) for name in test.names]
captions = [caption for photo in in_gallery for caption in np.flatnonzero(gallery.image_ids == photo)]
assert [gallery.captions[caption] for caption in captions] == test.captions
assert torch.allclose(after_images, image_vectors[in_gallery], atol=0.01)  # the gallery is what the model sees
spaces = {"before": before, "after": (image_vectors[in_gallery], caption_vectors[captions])}

figure, axes = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
for ax, (name, (images, texts)) in zip(axes, spaces.items()):
    plots.plot_space(*draw_map(images.numpy(), texts.numpy()), test.image_ids, test_subjects, ax=ax, shown=FIVE)
    ax.set_title(f"{name} training: 69 photos, 345 captions")
axes[0].get_legend().remove()
plt.show()

# %% [markdown]
# Before training, photos and captions are two separate worlds, and a line says little. Yet each world has some order
# of its own: the backbones know a lot already. What training adds is the *connection*. In numbers: mean cosines within
# and between the modalities.
#
# **Guess first.** Before training, two photos that have nothing in common have a mean cosine (a) near 0, (b) clearly
# above 0, (c) below 0.

# %% tags=["guess"]
my_guess = ...  # "a", "b" or "c"


# %%
def mean_cosines(images: torch.Tensor, texts: torch.Tensor, image_ids: torch.Tensor) -> list[float]:
    """Of photos with photos, captions with captions, photos with captions, and true pairs."""
    true = (images[image_ids] * texts).sum(1).mean()
    others = [float((a @ a.T).sum() - len(a)) / (len(a) * (len(a) - 1)) for a in (images, texts)]
    return [*others, float((texts @ images.T).mean()), float(true)]


columns = ["image–image", "text–text", "image–text", "true pairs"]
cosines = {name: mean_cosines(*space, test_image_ids) for name, space in spaces.items()}
plots.plot_matrix(np.array(list(cosines.values())), list(cosines), columns, digits=2).figure.set_size_inches(6.5, 1.8)
plt.show()
rsum = {name: evaluate(*space, test_image_ids)["rsum"] for name, space in spaces.items()}
print(f"RSUM before training {rsum['before']:.0f}, after training {rsum['after']:.0f}")
assert rsum["after"] > 10 * rsum["before"]
assert cosines["after"][3] - cosines["after"][2] > cosines["before"][3] - cosines["before"][2] + 0.05
before_photos = cosines["before"][0]
seen = "b" if before_photos > 0.1 else "c" if before_photos < -0.1 else "a"
reveal(seen, my_guess, f"It is {before_photos:.2f}: a fresh model puts all photos into one cone.")

# %% [markdown]
# Read the rows. Before: photos crowd in a cone, where random directions would have 0, and a true pair is hardly more alike
# than any pair. (Guessing would have an RSUM of about 46 among 69 photos.) After: the cones have opened up, and true
# pairs stand out.
#
# ## The modality gap of the trained model
#
# Is the gap gone after training? Measure it as in the toy: the distance of the two centres, and whether the side of a
# point on the line between the centres gives its modality away. To be fair, the centres come from the training photos
# of the gallery and the guess is about test photos.


# %%
def centre_gap(images: torch.Tensor, texts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The vector from the centre of the texts to that of the images, and the point half-way."""
    return images.mean(0) - texts.mean(0), (images.mean(0) + texts.mean(0)) / 2


def told_apart(images: torch.Tensor, texts: torch.Tensor, gap: torch.Tensor, middle: torch.Tensor) -> float:
    """Share of points on the side of their own modality; both modalities count the same."""
    return float((((images - middle) @ gap > 0).float().mean() + ((texts - middle) @ gap < 0).float().mean()) / 2)


def places_on_line(images: torch.Tensor, texts: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Where images and texts project to on the line between their centres; 0 is half-way."""
    gap, middle = centre_gap(images, texts)
    direction = gap / gap.norm()
    return ((images - middle) @ direction).numpy(), ((texts - middle) @ direction).numpy()


known = set(open_dataset().split("train").names)
learn = torch.tensor([name in known for name in gallery.names])
gap, middle = centre_gap(image_vectors[learn], caption_vectors[learn[image_ids]])
share = told_apart(*spaces["after"], gap, middle)
print(f"told apart by one number: {share:.0%}, where a coin has 50%")
assert share > 0.8
assert centre_gap(*spaces["after"])[0].norm() < centre_gap(*spaces["before"])[0].norm()

# %% tags=["drawing"]
figure, axes = plt.subplots(1, 2, figsize=(10, 3), layout="constrained", sharex=True)
for ax, (name, space) in zip(axes, spaces.items()):
    for places, colour, label in zip(places_on_line(*space), (plots.IMAGE, plots.TEXT), ("images", "texts")):
        ax.hist(places, bins=np.linspace(-0.6, 0.6, 60), color=colour, alpha=0.7, density=True, label=label)
    ax.axvline(0, color="black", ls=":", lw=1)
    distance = float(centre_gap(*space)[0].norm())
    ax.set(title=f"{name} training: gap {distance:.2f}", xlabel="place on the line between the centres", yticks=[])
axes[1].legend(frameon=False, loc="upper left")
plt.show()

# %% [markdown]
# The gap has become smaller. It is not gone: one number guesses the modality better than a coin. The objective
# never asked for more, because it compares photos with captions and rewards the right *order*. A shift that all photos
# share costs next to nothing, as in the toy.
#
# One consequence: throw all points together and ask for the nearest neighbour of each. How often is it of the same
# kind? With five times as many captions as photos, a photo in a random mixture would have a photo next to it in one
# of six cases.
#
# **Guess first.** In the trained space the point next to a photo is another photo in (a) less than a third of the cases,
# (b) a third to two thirds, (c) more than two thirds.

# %% tags=["guess"]
my_guess = ...  # "a", "b" or "c"


# %%
def keep_to_themselves(images: torch.Tensor, texts: torch.Tensor) -> tuple[float, float]:
    """Share of images whose nearest point is an image, and of texts whose nearest point is a text."""
    between = texts @ images.T
    own = [(points @ points.T).fill_diagonal_(-1).amax(1) for points in (images, texts)]  # not the point itself
    return float((own[0] > between.amax(0)).float().mean()), float((own[1] > between.amax(1)).float().mean())


shares = keep_to_themselves(image_vectors, caption_vectors)
print(f"nearest to a photo is a photo: {shares[0]:.0%}; in a mixture it would be {275 / 1655:.0%}")
print(f"nearest to a caption is a caption: {shares[1]:.0%}; in a mixture {1379 / 1655:.0%}")
assert shares[0] > 3 * 275 / 1655 and shares[1] > 0.95
seen = "a" if shares[0] < 1 / 3 else "b" if shares[0] < 2 / 3 else "c"
reveal(seen, my_guess, f"It is {shares[0]:.0%}. The caption that describes the photo is often not the nearest point.")

# %% [markdown]
# A caption has four siblings that describe the same photo, so captions have a reason. Photos have none. This is why
# one searches *from* one modality *in* the other: in a mixed pile a sentence would find other sentences first.
#
# ## Closing the gap
#
# So what happens if we close it by hand? Move all photos by a share of half the gap towards the captions, all captions
# as much towards the photos, and make them unit vectors again. A share of 0 is the model as it is, 1 closes the gap,
# 2 swaps the sides, and below 0 the gap grows.
#
# **Guess first.** When the gap is closed, RSUM (a) falls by more than a twentieth, (b) changes by less than that, (c) rises by
# more.

# %% tags=["guess"]
my_guess = ...  # "a", "b" or "c"

# %%
gap, _ = centre_gap(image_vectors, caption_vectors)


def shifted(share: float) -> tuple[torch.Tensor, torch.Tensor]:
    return normalize(image_vectors - share * gap / 2), normalize(caption_vectors + share * gap / 2)


shares = np.linspace(-1, 2, 13)
after_shift = [evaluate(*shifted(share), image_ids)["rsum"] for share in shares]
sizes = [float(centre_gap(*shifted(share))[0].norm()) for share in shares]
as_it_is, when_closed = after_shift[4], after_shift[8]
assert sizes[8] < sizes[4] / 5
assert abs(when_closed - as_it_is) < as_it_is / 50

# %% tags=["drawing"]
figure, axes = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
plots.plot_curves({"gap": (shares, sizes)}, "share of the gap that is closed", "gap", ax=axes[0])
plots.plot_curves({"RSUM": (shares, after_shift)}, "share of the gap that is closed", "RSUM, 276 photos", ax=axes[1])
axes[0].set_ylim(0, None)
axes[1].set_ylim(0, 600)
for ax in axes:
    ax.axvline(0, color="black", ls=":", lw=1)
figure.suptitle("Without its gap the space works about as well as before")
plt.show()

# %%
print(f"gap {sizes[4]:.2f} as it is, {sizes[8]:.2f} closed; RSUM {as_it_is:.0f} as it is, {when_closed:.0f} closed")
change = (when_closed - as_it_is) / as_it_is
seen = "a" if change < -0.05 else "c" if change > 0.05 else "b"
reveal(
    seen,
    my_guess,
    "What all photos share adds about as much to every similarity, and ranks do not care about a constant.",
)

# %% [markdown]
# (The map of the app is drawn with the gap closed, so that it shows contents and not modalities.) What closing looks
# like from the side: the horizontal direction is the line between the centres, the vertical one is the direction in
# which the points spread most otherwise.

# %%
centred = torch.cat([image_vectors, caption_vectors]) - torch.cat([image_vectors, caption_vectors]).mean(0)
across = gap / gap.norm()
upward = torch.linalg.svd(centred - (centred @ across)[:, None] * across, full_matrices=False)[2][0]
plane = torch.stack([across, upward], dim=1)
reach = 1.05 * max(float((points @ plane).abs().max()) for share in (-1, 0, 1, 2) for points in shifted(share))


# %% tags=["drawing"]
def plot_shifted(share: float, ax: plt.Axes) -> None:
    images, texts = (points @ plane for points in shifted(share))
    ax.scatter(*texts.T, s=6, color=plots.TEXT, alpha=0.6, label="texts")
    ax.scatter(*images.T, s=14, color=plots.IMAGE, label="images")
    rsum = evaluate(*shifted(share), image_ids)["rsum"]
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[])
    ax.set_title(f"{share:.0%} closed: RSUM {rsum:.0f}")


figure, axes = plt.subplots(1, 3, figsize=(11, 3.9), layout="constrained")
for ax, share in zip(axes, (0, 0.5, 1)):
    plot_shifted(share, ax)
axes[0].set(xlabel="line between the centres", ylabel="largest spread")
figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, loc="outside right center")
plt.show()


# %% tags=["drawing", "nbval-ignore-output"]
def show_shift(closed: float) -> None:
    plot_shifted(closed, plt.subplots(figsize=(4.2, 4.2), layout="constrained")[1])


sliders(show_shift, [0], closed=np.arange(-1, 2.1, 0.25))

# %% [markdown]
# ## Where retrieval fails
#
# Back to the model as it is. Each caption searches among all 276 photos, and we look at the photo that comes first. It
# can be the caption's own, another of the same subject, or one of another subject.

# %%
first = (caption_vectors @ image_vectors.T).argmax(1).numpy()
right = first == gallery.image_ids
subject_of_caption = subjects[gallery.image_ids]
related = (subjects[first] == subject_of_caption) & ~right
names, counts = np.unique(subjects, return_counts=True)
outcome = np.array([[100 * kind[subject_of_caption == name].mean() for kind in (right, related)] for name in names])
print(f"its own photo {right.mean():.0%}, the right subject {(right | related).mean():.0%}")
assert (right | related).mean() > 1.4 * right.mean()

# %% tags=["drawing"]
order = outcome.sum(axis=1).argsort()
labels = [f"{names[row]} ({counts[row]})" for row in order]
figure, ax = plt.subplots(figsize=(8, 4.6), layout="constrained")
ax.barh(labels, 100, color="#DDDDDD", label="another subject")
ax.barh(labels, outcome.sum(axis=1)[order], color=plots.TEXT, label="another photo of the subject")
ax.barh(labels, outcome[order, 0], color=plots.RIGHT, label="its own photo")
ends = names[order[-1]], names[order[0]]
title = f"{ends[0].capitalize()} find their subject most often, {ends[1]} least often"
ax.set(xlabel="what comes first, in per cent of the captions", xlim=(0, 100), title=title)
handles, keys = ax.get_legend_handles_labels()
figure.legend(handles[::-1], keys[::-1], frameon=False, loc="outside lower center", ncols=3)
plt.show()

# %% [markdown]
# The number of photos stands in brackets: many photos of a kind are many **rivals** (a long orange bar). Other subjects fail
# in another way: many of their captions end up with another subject (a long grey bar). But a wrong answer is seldom a
# random one. How often does a wrong first photo have at least the right subject, and which subjects are confused most?

# %%
wrong = ~right
share = related.sum() / wrong.sum()
by_chance = np.mean([(counts[names == name][0] - 1) / 275 for name in subject_of_caption[wrong]])
print(f"wrong photo, right subject: {share:.0%}; by chance {by_chance:.0%}")
assert share > 3 * by_chance
lost = wrong & ~related
pairs = np.char.add(np.char.add(subject_of_caption[lost], " -> "), subjects[first][lost])
for pair, count in sorted(zip(*np.unique(pairs, return_counts=True)), key=lambda item: -item[1])[:4]:
    print(f"{count:3}  {pair}")

# %% [markdown]
# Do these confusions make sense to you? Some wrong answers even have *one* photo in common:

# %%
favourite = int(np.bincount(first[wrong]).argmax())
print(
    f"{(first[wrong] == favourite).sum()} captions of other photos find this one first; one of its own captions says:"
)
print(" ", gallery.captions[np.flatnonzero(gallery.image_ids == favourite)[0]])
taken = np.sort(np.bincount(first[wrong], minlength=len(subjects)))[::-1]
print(f"a tenth of the photos take {taken[:28].sum() / taken.sum():.0%} of all wrong first places")
assert taken[:28].sum() > 0.3 * taken.sum()  # were they spread evenly, a tenth would take a tenth

# %% [markdown]
# Such a photo is called a **hub**: it is near to many captions of which the model knows nothing better. Hubs are common in
# spaces of many dimensions.
#
# And the worst captions? The three captions with the largest ranks (of three different photos). First their own photo, ticked,
# with its score, and then the three photos that the model prefers.

# %%
similarities = caption_vectors @ image_vectors.T
ranks = retrieval_ranks(similarities, image_ids)[1].numpy()
worst = {}  # photo: its worst caption
for caption in np.argsort(-ranks, kind="stable"):
    worst.setdefault(int(gallery.image_ids[caption]), int(caption))
for photo, caption in list(worst.items())[:3]:
    shown = [photo, *similarities[caption].topk(3).indices.tolist()]
    photos = [gallery_photo(gallery.names[number]) for number in shown]
    marks = [number == photo for number in shown]
    scores, note = similarities[caption, shown].tolist(), f"(rank {ranks[caption]})"
    plots.plot_retrieved_images(gallery.captions[caption], photos, scores, marks, note)
    plt.show()
assert ranks.max() > 50

# %% [markdown]
# Look at the sentences before you blame the model. Which of them speak of something that the photo hardly shows? Which
# have a word that can be taken for another thing? Would *you* have chosen their photos? ([Lesson 9](09_case_study.ipynb)
# takes such a failure apart, word by word.)
#
# ## What the map keeps
#
# Hundreds of dimensions do not fit into two. UMAP promises neighbours, not distances. Check the first promise: of the k nearest
# neighbours of a point in the space, how many are among its k nearest on the map? For comparison the same with **PCA**,
# which is a plain projection onto the two directions of largest spread, and with chance.

# %%
space = np.concatenate([image_vectors, caption_vectors])
umap_plane = np.concatenate([map_images, map_texts])
centred = space - space.mean(axis=0)
pca_plane = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T


def distances(points: np.ndarray) -> np.ndarray:
    """Euclidean, all with all; for unit vectors the order is that of the cosine."""
    squares = (points**2).sum(axis=1)
    return np.sqrt(np.maximum(0, squares[:, None] + squares[None] - 2 * points @ points.T))


def kept_neighbours(one: np.ndarray, other: np.ndarray, sizes: list[int]) -> np.ndarray:
    """Mean share of the k nearest that two arrangements of the same points have in common, for each k."""
    places = []
    for points in (one, other):
        apart = distances(points)
        np.fill_diagonal(apart, np.inf)  # a point is not its own neighbour
        places.append(apart.argsort(axis=1).argsort(axis=1))  # place 0 is the nearest
    return np.array([((places[0] < k) & (places[1] < k)).sum(axis=1).mean() / k for k in sizes])


sizes = [1, 2, 5, 10, 20, 50, 100, 200, 400]
kept = {name: kept_neighbours(space, flat, sizes) for name, flat in (("UMAP", umap_plane), ("PCA", pca_plane))}
curves = {name: (sizes, share) for name, share in kept.items()}
curves["chance"] = (sizes, np.array(sizes) / (len(space) - 1))
colours = [plots.PALETTE[0], plots.PALETTE[1], "#888888"]
ax = plots.plot_curves(curves, "k, number of neighbours", "share of neighbours kept", colours=colours)
ax.set(xscale="log", ylim=(0, 1), title="A map loses many of the nearest neighbours")
ax.xaxis.set_major_formatter("{x:g}")
plt.show()
ten = sizes.index(10)
print("UMAP keeps more than twice as many of the ten nearest as PCA:", kept["UMAP"][ten] > 2 * kept["PCA"][ten])
assert kept["UMAP"][ten] > 2 * kept["PCA"][ten] > 2 * 10 / len(space)
assert kept["UMAP"][ten] < 0.6

# %% [markdown]
# Even the better map loses about half of the ten nearest neighbours, or more. Now the distances themselves: some 3,000
# random pairs of points, how far apart they are in the space and on the map.

# %%
random = np.random.default_rng(0)
one, other = random.integers(len(space), size=(2, 3000))
one, other = one[one != other], other[one != other]
in_space = np.linalg.norm(space[one] - space[other], axis=1)
print(f"distance in the space: {in_space.mean():.1f} ± {in_space.std():.1f}")
assert in_space.std() < in_space.mean() / 6

# %% tags=["drawing", "figure-varies"]
figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for ax, (name, flat) in zip(axes, (("UMAP", umap_plane), ("PCA", pca_plane))):
    on_map = np.linalg.norm(flat[one] - flat[other], axis=1)
    ax.plot(in_space, on_map, ".", ms=3, color=plots.IMAGE, alpha=0.4)
    ax.set(xlabel="distance in the space", ylabel="distance on the map", title=name, ylim=(0, None))
figure.suptitle("Far on the map is not far in the space")
plt.show()

# %% [markdown]
# In the space most pairs are *about equally far apart*, near √2: in many dimensions two random directions are nearly at
# right angles. No flat map can show that, so the large distances on a map are made up. Do not read anything into the size of an
# island, the room between two islands, or which island lies next to which.
#
# A last test: search on the map. If it kept all that matters, the nearest photo on the map would be the right one as
# often as in the space.

# %%
apart = torch.from_numpy(np.linalg.norm(map_texts[:, None] - map_images[None], axis=2))
on_map = retrieval_ranks(-apart, image_ids)[1].numpy()
assert (ranks <= 10).mean() > (on_map <= 10).mean() > 10 / 276

# %% tags=["drawing", "figure-varies"]
figure, ax = plt.subplots(figsize=(5.5, 3), layout="constrained")
k = np.array([1, 5, 10])
for shift, (name, these) in enumerate({"in the space": ranks, "on the map": on_map}.items()):
    recalls = [100 * (these <= top).mean() for top in k]
    ax.bar(np.arange(3) + 0.4 * shift, recalls, 0.38, color=plots.PALETTE[shift], label=name)
ax.set_xticks(np.arange(3) + 0.2, [f"R@{top}" for top in k])
ax.set(ylabel="per cent of captions", title="Search in the space, not on the map")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Exercises
#
# **1.** Add the *same* vector to all photos, and do not normalise. Do the ranks of photos for a caption stay (`t2i`)? Do
# those of captions for a photo (`i2t`)? Think first, then compute both, in double precision.
#
# <details><summary>Hint</summary>For a caption t and a photo v, t · (v + a) = t · v + t · a. In which direction of
# search is the second part the same for all candidates?</details>

# %% tags=["exercise"]
images, texts = image_vectors.double(), caption_vectors.double()
a = 0.3 * normalize(torch.ones(images.shape[1], dtype=torch.float64), dim=0)
t2i_stays, i2t_stays = ..., ...  # your turn: True or False, from retrieval_ranks(texts @ (images + a).T, image_ids)

# %% tags=["check"]
check("8.1", t2i_stays, i2t_stays, images=images, texts=texts, image_ids=image_ids, shift=a)

# %% tags=["solution"]
# Solution
i2t, t2i = retrieval_ranks(texts @ images.T, image_ids)
new_i2t, new_t2i = retrieval_ranks(texts @ (images + a).T, image_ids)
t2i_stays, i2t_stays = torch.equal(t2i, new_t2i), torch.equal(i2t, new_i2t)
print("ranks of photos for captions all stay:", t2i_stays)  # t · a is the same for all photos
print("ranks of captions for photos all stay:", i2t_stays)  # for a photo, captions gain different amounts
check("8.1", t2i_stays, i2t_stays, images=images, texts=texts, image_ids=image_ids, shift=a)

# %% [markdown]
# **2.** How much of a map is chance? Draw the map of the 69 test photos (after training) with two seeds, and see how
# many of the ten nearest neighbours the two maps have in common.
#
# <details><summary>Hint</summary><code>draw_map(…, seed=1)</code>, and <code>kept_neighbours(one, other,
# [10])</code> works for two maps as well.</details>

# %% tags=["exercise"]
maps, common = ..., ...  # your turn: two maps, and the share of the ten nearest that they have in common

# %% tags=["check"]
check("8.2", common, maps)

# %% tags=["solution"]
# Solution
test_images, test_texts = (points.numpy() for points in spaces["after"])
maps = [np.concatenate(draw_map(test_images, test_texts, seed)) for seed in (1, 2)]
common = kept_neighbours(*maps, [10])[0]
print("more than a third of the neighbours in common:", common > 1 / 3, "· nearly all:", common > 0.9)
assert 1 / 3 < common < 0.9
check("8.2", common, maps)

# %% [markdown]
# **3.** The line between the centres is the simplest linear rule. Train a better one, a logistic regression, to tell
# photos from captions: with the vectors as they are, and with the gap closed. Learn from the training photos (the gap
# comes from them too), count on the others.
#
# <details><summary>Hint</summary><code>sklearn.linear_model.LogisticRegression(class_weight="balanced")</code>;
# <code>learn</code> marks the training photos and <code>learn[image_ids]</code> their captions. Move the vectors by half
# of <code>centre_gap</code> of the training points.</details>

# %% tags=["exercise"]
share_as_it_is, share_closed = ..., ...  # your turn

# %% tags=["check"]
check(
    "8.3", share_as_it_is, share_closed, images=image_vectors, texts=caption_vectors, image_ids=image_ids, learn=learn
)

# %% tags=["solution"]
# Solution
from sklearn.linear_model import LogisticRegression

gap_learned, _ = centre_gap(image_vectors[learn], caption_vectors[learn[image_ids]])


def linear_rule(share: float) -> float:
    """How often a linear classifier is right about points it has not seen; both modalities count the same."""
    images = normalize(image_vectors - share * gap_learned / 2).numpy()
    texts = normalize(caption_vectors + share * gap_learned / 2).numpy()
    mine, theirs = learn.numpy(), learn[image_ids].numpy()
    labels = np.repeat([1, 0], [mine.sum(), theirs.sum()])
    rule = LogisticRegression(class_weight="balanced").fit(np.concatenate([images[mine], texts[theirs]]), labels)
    return (rule.predict(images[~mine]).mean() + 1 - rule.predict(texts[~theirs]).mean()) / 2


share_as_it_is, share_closed = linear_rule(0), linear_rule(1)
print(f"as it is {share_as_it_is:.0%}, gap closed {share_closed:.0%}; a coin has 50%")
assert (
    share_as_it_is > share_closed + 0.1
)  # what a linear rule can see of the modality is mostly the distance of the centres
check(
    "8.3", share_as_it_is, share_closed, images=image_vectors, texts=caption_vectors, image_ids=image_ids, learn=learn
)

# %% [markdown]
# ## Five questions
#
# Choose, then unfold what you chose: every option says why it is right or wrong.

# %%
quiz("08_joint_space")

# %% [markdown]
# ## What the paper says, what we see
#
# | the paper | here |
# |---|---|
# | A joint space puts related photos and sentences close to each other (introduction) | True pairs are closer than others, see the table of cosines. But the nearest neighbour of a photo is often another photo, not a caption: the gap. |
# | Alignment and uniformity describe the space (section 3.3) | Yes, and both compare photos with captions only. A gap between the modalities is invisible to them except for a constant. |
# | The figures of the paper show results, not maps | A map is a nice start. Each claim above was checked in the space itself. |
#
# Next: [why did it match?](09_case_study.ipynb) takes single scores apart.
#
# ## References
#
# - Zhang et al., *Improving Visual-Semantic Embedding with Adaptive Pooling and Optimization Objective*, EACL 2023,
#   [arXiv:2210.02206](https://arxiv.org/abs/2210.02206).
# - McInnes, Healy and Melville, *UMAP: Uniform Manifold Approximation and Projection for Dimension Reduction*, 2018,
#   [arXiv:1802.03426](https://arxiv.org/abs/1802.03426).
# - Liang et al., *Mind the Gap: Understanding the Modality Gap in Multi-modal Contrastive Representation Learning*,
#   NeurIPS 2022, [arXiv:2203.02053](https://arxiv.org/abs/2203.02053).
