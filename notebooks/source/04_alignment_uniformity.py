# %% [markdown]
# # 4 · Alignment and uniformity
#
# A joint space is good when two things hold at once: a caption lies close to its photo, and everything else is spread
# out, so that there is room to be told apart. The first is called **alignment**, the second **uniformity**. Each is
# one number that can be read off while a model trains, and the next lesson steers training by them.
#
# **You will learn** what the two numbers see and what they miss, on circles that you can drag; how the paper's
# formulas follow from those of Wang and Isola; why the authors' code counts uniformity the other way round; what
# a real space and a real training run look like through them; and how to see in a log that a run has collapsed.
#
# **Time**: 35 minutes. **You need**: cosine similarity, logarithms, a little PyTorch.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.nn.functional import normalize

from vse_demo import alignment, evaluate, plots, uniformity
from vse_demo.shipped import load_shipped, read_log
from vse_demo.teaching import check, quiz, reveal, sliders

# %% [markdown]
# ## The idea in one figure
#
# Unit vectors in two dimensions are points on a circle. Each blue photo is joined to its orange caption. **Alignment**
# means short lines. **Uniformity** means a full circle. A space can have either without the other.
#
# Our toy has two dials. `spread` is the share of the circle that the photos fill. `gap` is the angle between a photo
# and its caption; every second caption is turned the other way.


# %%
def circle(spread: float, gap: float, pairs: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Photos over a share of the circle, captions `gap` degrees away from them: two arrays (pairs, 2)."""
    number = np.arange(pairs)
    photo_angle = np.pi / 2 + spread * 2 * np.pi * (number - (pairs - 1) / 2) / pairs
    text_angle = photo_angle + np.radians(gap) * (-1.0) ** number

    def points(angle: np.ndarray) -> np.ndarray:
        return np.stack([np.cos(angle), np.sin(angle)], axis=1)

    return points(photo_angle), points(text_angle)


# %% tags=["drawing"]
figure, axes = plt.subplots(1, 4, figsize=(12, 3.3), layout="constrained")
for ax, spread, gap, title in (
    (axes[0], 1.0, 8, "aligned and uniform"),
    (axes[1], 1.0, 75, "uniform, not aligned"),
    (axes[2], 0.06, 2, "aligned, not uniform"),
    (axes[3], 0.15, 40, "neither"),
):
    plots.plot_circle(*circle(spread, gap), ax=ax).set_title(title)
    if ax is not axes[0]:
        ax.get_legend().remove()
plt.show()

# %% [markdown]
# ## By hand: three pairs
#
# Put three photos at 0°, 90° and 180°, and each caption exactly on its photo. Then every similarity is 1, 0 or −1, and
# we can do the sums on paper. A row is a caption, a column is a photo, so the true pairs are on the diagonal.

# %%
angles = np.radians([0, 90, 180])
photos = np.stack([np.cos(angles), np.sin(angles)], axis=1)
texts = photos.copy()
similarities = (texts @ photos.T).round(12) + 0.0
figure, ax = plt.subplots(figsize=(3.8, 2.4), layout="constrained")
plots.plot_matrix(similarities, ["text 1", "text 2", "text 3"], ["photo 1", "photo 2", "photo 3"], ax=ax, digits=0)
plt.show()

# %% [markdown]
# The paper defines (section 3.3)
#
# $$\gamma_{\text{align}} = \mathbb{E}_{\text{true pairs}}\,[\text{sim}] \qquad\qquad
# \gamma_{\text{uniform}} = \log\, \mathbb{E}_{\text{all pairs}}\,[e^{\text{sim}}]$$
#
# Alignment is the mean of the diagonal, here 1. For uniformity we have three 1s, four 0s and two −1s:

# %%
by_hand = np.log((3 * np.exp(1) + 4 * np.exp(0) + 2 * np.exp(-1)) / 9)
print(f"alignment  = (1 + 1 + 1) / 3 = {np.diag(similarities).mean():.2f}")
print(f"uniformity = log((3e + 4 + 2/e) / 9) = {by_hand:.2f}")

library = torch.tensor(similarities)
assert np.isclose(float(alignment(library)), 1.0)
assert np.isclose(float(uniformity(library)), by_hand)

# %% [markdown]
# Which way is good? **Higher** alignment is better. For uniformity it is the other way round: if everything sits on one
# point, all similarities are 1 and $\log e^1 = 1$. That is the worst case. The more the points spread, the **lower** it
# gets.

# %%
one_point = torch.ones(3, 3)
print(f"everything on one point: alignment {alignment(one_point):.2f}, uniformity {uniformity(one_point):.2f}")
assert np.isclose(float(uniformity(one_point)), 1.0)

# %% [markdown]
# ## Drag it
#
# Move the two sliders and watch the bars. Try to change one bar and leave the other alone. (The third bar is the
# uniformity of the authors' code; we come to it below.)

# %% tags=["nbval-ignore-output"]
GREEN, PINK, SKY = plots.RIGHT, plots.PALETTE[4], plots.PALETTE[5]


def measure(photos: np.ndarray, texts: np.ndarray) -> dict[str, float]:
    similarities = torch.tensor(texts @ photos.T)
    return {
        "alignment": float(alignment(similarities)),
        "uniformity, paper": float(uniformity(similarities, variant="paper")),
        "uniformity, code": float(uniformity(similarities, variant="official")),
    }


def show_circle(spread: float, gap: float) -> None:
    photos, texts = circle(spread, gap)
    values = measure(photos, texts)
    _, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", width_ratios=(1, 1.6))
    plots.plot_circle(photos, texts, ax=left)
    right.barh(list(values), list(values.values()), color=[GREEN, PINK, SKY])
    for row, value in enumerate(values.values()):
        right.text(max(value, 0) + 0.03, row, f"{value:.2f}", va="center", fontsize=12)
    right.axvline(0, color="black", lw=0.8)
    right.set(xlim=(-1.05, 1.6))
    right.invert_yaxis()


sliders(show_circle, [0.5, 20], spread=(0, 0.25, 0.5, 0.75, 1), gap=(0, 20, 45, 90, 135, 180))

# %% [markdown]
# The same as a still picture: first we only open the gap, then we only widen the spread.

# %%
gaps, spreads = np.arange(0, 181, 5), np.linspace(0, 1, 41)
by_gap = [measure(*circle(1.0, gap)) for gap in gaps]
by_spread = [measure(*circle(spread, 10)) for spread in spreads]

# %% tags=["drawing"]
figure, axes = plt.subplots(1, 2, figsize=(10.5, 3.6), layout="constrained", sharey=True)
for ax, x, rows in ((axes[0], gaps, by_gap), (axes[1], spreads, by_spread)):
    for name, colour in (("alignment", GREEN), ("uniformity, paper", PINK), ("uniformity, code", SKY)):
        ax.plot(x, [row[name] for row in rows], color=colour, lw=2, label=name)
    ax.axhline(0, color="black", lw=0.6)
axes[0].set(xlabel="gap in degrees (full circle)", ylabel="value", title="Opening the pairs moves alignment")
axes[1].set(xlabel="spread (gap of 10 degrees)", title="Spreading the points moves uniformity")
axes[0].legend(frameon=False, loc="lower left")
plt.show()

# %%
assert np.allclose([row["alignment"] for row in by_gap], np.cos(np.radians(gaps)))  # alignment is cos(gap)
assert np.ptp([row["uniformity, paper"] for row in by_gap]) < 1e-6
assert np.ptp([row["alignment"] for row in by_spread]) < 1e-6
assert by_spread[0]["uniformity, paper"] > by_spread[-1]["uniformity, paper"] + 0.7
for name in ("uniformity, paper", "uniformity, code"):
    print(
        f"{name}: moves by {np.ptp([row[name] for row in by_gap]):.2f} on the left, by {np.ptp([row[name] for row in by_spread]):.2f} on the right"
    )

# %% [markdown]
# In the left panel the paper's uniformity (pink) stands still, the code's (blue) does not: it counts a true pair as a
# similarity of 0, and with twelve pairs that shows. In a batch of 128 it is hardly visible. In the right panel alignment
# stands still and both uniformities move, in opposite directions.
#
# ## Where the two numbers come from
#
# Wang and Isola (2020) proposed both, as two **losses**, so for them lower is better in both cases. They measure
# distances instead of similarities:
#
# $$\text{align}_{WI} = \mathbb{E}_{\text{true pairs}}\,\lVert x - y\rVert^2 \qquad\qquad
# \text{uniform}_{WI}(t) = \log\, \mathbb{E}\; e^{-t\lVert x - y\rVert^2}$$
#
# Only one fact is needed to get from there to the paper. For **unit** vectors,
#
# $$\lVert x - y\rVert^2 = \lVert x\rVert^2 + \lVert y\rVert^2 - 2\,x\cdot y = 2 - 2\,\text{sim}.$$
#
# *Alignment.* Take the mean on both sides: $\text{align}_{WI} = 2 - 2\,\mathbb{E}[\text{sim}]$, that is
# $2 - 2\,\gamma_{\text{align}}$. The same thing, turned upside down.
#
# *Uniformity.* Put it into the exponent and pull the constant out of the mean:
#
# $$\text{uniform}_{WI}(t) = \log\, \mathbb{E}\; e^{-t(2 - 2\,\text{sim})} = \log\,\big(e^{-2t}\;\mathbb{E}\; e^{2t\,
# \text{sim}}\big) = -2t + \log\, \mathbb{E}\; e^{2t\,\text{sim}}.$$
#
# With $t = \tfrac12$ the factor $2t$ is 1, and the last term is the paper's uniformity:
# $\gamma_{\text{uniform}} = \text{uniform}_{WI}(\tfrac12) + 1$.
#
# One difference is left. Wang and Isola draw $x$ and $y$ from the **same** kind of thing, and they use $t = 2$. The
# paper takes a photo and a caption, so it measures **across** the two kinds. Exercise 2 shows what slips through.


# %%
def align_wi(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean squared distance of true pairs: row i of x belongs to row i of y."""
    return (x - y).square().sum(1).mean()


def uniform_wi(x: torch.Tensor, y: torch.Tensor, t: float) -> torch.Tensor:
    """log E exp(−t·‖x − y‖²) over every row of x with every row of y."""
    return (-t * torch.cdist(x, y).square()).exp().mean().log()


generator = torch.Generator().manual_seed(0)
x = normalize(torch.randn(40, 8, generator=generator, dtype=torch.float64))
y = normalize(x + 0.5 * torch.randn(40, 8, generator=generator, dtype=torch.float64))
similarities = y @ x.T
print(f"alignment   {alignment(similarities):.2f}   2 − 2·alignment    {2 - 2 * alignment(similarities):.2f}")
print(f"align_WI                               {align_wi(x, y):.2f}")
print(f"uniformity  {uniformity(similarities):.2f}   uniform_WI(½) + 1  {uniform_wi(x, y, 0.5) + 1:.2f}")
assert torch.isclose(align_wi(x, y), 2 - 2 * alignment(similarities))
assert torch.isclose(uniform_wi(x, y, 0.5) + 1, uniformity(similarities))

# %% [markdown]
# ## The authors' code does something else
#
# The code that the authors published sets the similarities of true pairs to 0 and then takes
#
# $$\text{uniformity}_{\text{code}} = \mathbb{E}\,[e^{-\text{sim}}].$$
#
# There is a minus sign and no logarithm. So **here higher is more uniform**. Three values are worth knowing: about
# 0.37 (that is 1/e) when everything sits on one point, exactly 1 when all similarities are 0, and above 1 when
# unrelated pairs point away from each other.

# %%
batch = 128
collapsed = torch.ones(batch, batch)
orthogonal = torch.eye(batch)  # true pairs 1, all others 0
for name, matrix in (("one point", collapsed), ("all at right angles", orthogonal)):
    paper, code = uniformity(matrix, variant="paper"), uniformity(matrix, variant="official")
    print(f"{name:20} paper {paper:.2f}   code {code:.2f}")

without_pairs = collapsed.clone().fill_diagonal_(0)
assert torch.isclose(uniformity(collapsed, variant="official"), (-without_pairs).exp().mean())
assert uniformity(orthogonal, variant="official") == 1
assert uniformity(collapsed, variant="official") < uniformity(orthogonal, variant="official")  # higher: more uniform
assert uniformity(collapsed, variant="paper") > uniformity(orthogonal, variant="paper")  # lower: more uniform

# %% [markdown]
# Look back at the right panel above: the pink and the blue curve tell the same story in opposite directions. Which one
# goes into a formula matters a lot, as the [next lesson](05_adopt.ipynb) shows.
#
# ## Collapse: what alignment alone cannot see
#
# Suppose that we only ask for alignment. There is a cheap way to get all of it: send *everything* to one point. Every
# caption then lies exactly on its photo, and on every other photo too.
#
# Let us watch it happen. We make 200 pairs of noisy views of a shared angle and train two small linear maps onto
# the circle, once for alignment only and once for alignment *minus* uniformity.
#
# **Guess first.** Which of the two ends with the higher *alignment*? (a) The one trained for alignment only, (b) the one
# with uniformity, (c) both the same.

# %% tags=["guess"]
my_guess = ...  # "a", "b" or "c"


# %%
def train_circle(with_uniformity: bool, pairs: int = 200, steps: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """Train a linear map for each kind of view; returns their unit vectors on the circle."""
    random = np.random.default_rng(1)
    angle = torch.arange(pairs, dtype=torch.float64) * 2 * torch.pi / pairs
    shared = torch.stack([angle.cos(), angle.sin()], dim=1)

    def draw(*shape: int) -> torch.Tensor:
        return torch.from_numpy(random.normal(size=shape))

    def view() -> torch.Tensor:
        mixed = shared @ draw(2, 6)
        return mixed + 0.7 * draw(pairs, 6)

    views = view(), view()
    maps = [(0.5 * draw(6, 2)).requires_grad_() for _ in views]
    shifts = [(0.5 * draw(2)).requires_grad_() for _ in views]
    optimizer = torch.optim.Adam(maps + shifts, lr=0.05)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.05 * (1 - step / steps)  # smaller steps, so that it settles
        photos, texts = (normalize(v @ m + s) for v, m, s in zip(views, maps, shifts))
        similarities = texts @ photos.T
        loss = -alignment(similarities)
        if with_uniformity:
            loss = loss + uniformity(similarities)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return photos.detach().float(), texts.detach().float()  # as vectors are stored


# %%
trained = {"alignment only": train_circle(False), "alignment − uniformity": train_circle(True)}
pair_of = torch.arange(200)
figure, axes = plt.subplots(1, 2, figsize=(8, 4), layout="constrained")
for ax, (name, (photos, texts)) in zip(axes, trained.items()):
    found = evaluate(photos, texts, pair_of)["t2i"]["r10"]
    values = measure(photos.numpy(), texts.numpy())
    plots.plot_circle(photos[::8].numpy(), texts[::8].numpy(), ax=ax)
    ax.set_title(f"{name}\nalignment {values['alignment']:.2f}, uniformity {values['uniformity, paper']:.2f}")
    print(f"{name:23} right photo among the first ten: {'almost never' if found < 5 else 'often'}")
plt.show()

# %%
collapsed_photos, collapsed_texts = trained["alignment only"]
spread_photos, spread_texts = trained["alignment − uniformity"]
assert alignment(collapsed_texts @ collapsed_photos.T) > 0.99 > alignment(spread_texts @ spread_photos.T)
assert uniformity(collapsed_texts @ collapsed_photos.T) > 0.9 > 0.5 > uniformity(spread_texts @ spread_photos.T)
recalls = [evaluate(*trained[name], pair_of)["t2i"]["r10"] for name in trained]
assert recalls[0] < 5 and recalls[1] > 15
reveal("4.1", my_guess)

# %% [markdown]
# By alignment, the left space is the better one. As a search engine it is worthless. (This library counts a tie
# against the model, so a collapsed space finds nothing. Some older code counts it as a hit.) The uniformity tells the
# two apart at once.
#
# ## On a real space
#
# Now the trained model and the photos of the gallery, 276 with five captions each, as unit vectors. If the space is
# good, true pairs must stand out from the rest.

# %%
gallery = load_shipped("grid-minilm")
photos, texts = gallery.image_vectors.float(), gallery.caption_vectors.float()
image_ids = torch.as_tensor(gallery.image_ids)
assert torch.allclose(photos.norm(dim=1), torch.ones(len(photos)), atol=1e-3)

similarities = texts @ photos.T  # (captions, photos)
is_pair = image_ids[:, None] == torch.arange(len(photos))
assert similarities[is_pair].mean() > similarities[~is_pair].mean() + 0.1

# %% tags=["drawing"]
figure, ax = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
bins = np.linspace(-0.4, 1, 71)
ax.hist(similarities[~is_pair].numpy(), bins, density=True, color=plots.WRONG, alpha=0.6, label="other pairs")
ax.hist(similarities[is_pair].numpy(), bins, density=True, color=plots.RIGHT, alpha=0.6, label="true pairs")
ax.axvline(float(alignment(similarities, image_ids)), color=plots.RIGHT, lw=2, ls="--", label="alignment: their mean")
ax.set(xlabel="similarity of a caption and a photo", yticks=[], title="True pairs stand out")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# A number needs something to stand beside. We compare the space with three others: the same vectors, but each caption
# is given to a photo half a gallery away; random directions; and all on one point.

# %%
generator = torch.Generator().manual_seed(0)
random_photos = normalize(torch.randn(photos.shape, generator=generator))
random_texts = normalize(torch.randn(texts.shape, generator=generator))
spaces = {
    "trained model": (similarities, image_ids),
    "captions swapped": (similarities, (image_ids + len(photos) // 2) % len(photos)),
    "random directions": (random_texts @ random_photos.T, image_ids),
    "one point": (torch.ones_like(similarities), image_ids),
}
numbers = {
    name: [float(alignment(s, o)), float(uniformity(s, o, "paper")), float(uniformity(s, o, "official"))]
    for name, (s, o) in spaces.items()
}
print(f"{'':20}alignment   uniformity (paper)   uniformity (code)")
for name, (align, paper, code) in numbers.items():
    print(f"{name:20}{round(align, 2) + 0.0:9.2f}{paper:21.2f}{code:20.2f}")

assert numbers["captions swapped"][1] == numbers["trained model"][1]  # uniformity does not know who belongs to whom
assert numbers["captions swapped"][0] < numbers["trained model"][0]
assert abs(numbers["random directions"][0]) < 0.01 and numbers["random directions"][1] < 0.01
assert numbers["trained model"][1] < numbers["one point"][1] and numbers["trained model"][2] > numbers["one point"][2]

# %% [markdown]
# Random directions are as uniform as one can wish, and know nothing. One point is as aligned as one can wish, and
# knows nothing. The trained model needs both, and so do we to judge it.
#
# Swapping the captions leaves the paper's uniformity exactly as it was: it looks at *all* pairs, whoever belongs
# to whom.
#
# The identities hold here too, in many dimensions:

# %%
assert torch.isclose(align_wi(texts, photos[image_ids]), 2 - 2 * alignment(similarities, image_ids), atol=1e-3)
assert torch.isclose(uniform_wi(texts, photos, 0.5) + 1, uniformity(similarities), atol=1e-3)
print("align_WI = 2 − 2·alignment, and uniformity = uniform_WI(½) + 1: both hold on the gallery")

# %% [markdown]
# And this is what Wang and Isola would measure: within the photos, within the captions, and for comparison across the
# two. Identical vectors would give 0, more negative is more uniform. (Within one kind, a vector is not compared
# with itself.)


# %%
def uniform_within(x: torch.Tensor, t: float = 2) -> float:
    return float((-t * torch.pdist(x).square()).exp().mean().log())


print(f"within the photos    {uniform_within(photos):6.2f}")
print(f"within the captions  {uniform_within(texts):6.2f}")
print(f"across               {float(uniform_wi(texts, photos, 2)):6.2f}")
assert uniform_within(photos) < 0 and uniform_within(texts) < 0

# %% [markdown]
# ## Through a real training run
#
# `read_log` gives the log of a run, here of a model of this size that was trained with AdOpt only, a row every few steps. Some logs hold the uniformity of the
# authors' code (near 1 for a spread space), newer ones the paper's (near 0). Both tell the same thing: how similar
# **unrelated pairs** are, about $-\log$ of the code's and about the paper's itself. So we plot that.


# %%
def unrelated_similarity(log: dict[str, np.ndarray]) -> np.ndarray:
    """The mean similarity of unrelated pairs, read off the uniformity of either kind (a code's starts above 0.55)."""
    return -np.log(log["uniformity"]) if log["uniformity"][0] > 0.55 else log["uniformity"]


log = read_log("small-minilm")
unrelated = unrelated_similarity(log)
figure, axes = plt.subplots(1, 3, figsize=(12, 3.2), layout="constrained")
for ax, values, title, colour in zip(
    axes,
    (log["alignment"], unrelated, log["loss"]),
    ("alignment: similarity of true pairs", "similarity of unrelated pairs", "loss"),
    (GREEN, PINK, "black"),
):
    ax.plot(log["step"], values, color=colour, lw=1.5)
    ax.set(xlabel="step", title=title)
axes[1].axhline(0, color="#888888", lw=1, ls="--")
plt.show()

few = max(3, len(log["step"]) // 20)
ahead = [float((log["alignment"] - unrelated)[part].mean()) for part in (slice(few), slice(-few, None))]
print(
    f"true pairs are more similar than unrelated ones by {ahead[0]:.2f} at the start and by {ahead[1]:.2f} at the end"
)
assert ahead[1] > ahead[0] + 0.1

# %% [markdown]
# How to read it: a fresh model is **not** uniform. Its vectors lie in one cone, so unrelated pairs have a similarity
# above 0. Training opens the cone and pulls true pairs together. Which of the two comes first?


# %%
def first_time(values: np.ndarray, share: float) -> float:
    """The first step at which `values` has gone this share of its way from start to end."""
    begin, final = values[:few].mean(), values[-few:].mean()
    return float(log["step"][np.argmax((values - begin) / (final - begin) >= share)])


opened, aligned = first_time(unrelated, 0.8), first_time(log["alignment"], 0.8)
print(
    f"similarity of unrelated pairs at the start: {unrelated[:few].mean():.2f}, at the end {unrelated[-few:].mean():.2f}"
)
print(f"80 % of the way: the cone at step {opened:.0f}, alignment at step {aligned:.0f}, of {log['step'][-1]:.0f}")
assert unrelated[0] > 0

# %% [markdown]
# ## And through one that collapsed
#
# `assets/runs` has the logs of many small models. Two of them are alike in everything but the loss: AdOpt by the paper's
# equations, and the **hard triplet**, which pushes away the single hardest negative (both are the subject of the next
# lesson).
#
# **Guess first.** In a collapsed run, alignment ends (a) near 1, (b) near 0, (c) wherever the similarity of unrelated
# pairs ends.

# %% tags=["guess"]
my_guess = ...  # "a", "b" or "c"

# %% tags=["drawing"]
pair = {"AdOpt: the two part": read_log("adopt-paper-0"), "hard triplet: the two stay together": read_log("no-adopt-0")}
figure, axes = plt.subplots(1, 2, figsize=(10.5, 3.4), layout="constrained", sharey=True)
for ax, (title, run) in zip(axes, pair.items()):
    ax.plot(run["step"], run["alignment"], color=GREEN, lw=5, alpha=0.6, label="true pairs (alignment)")
    ax.plot(run["step"], unrelated_similarity(run), color="black", lw=1.2, ls="--", label="unrelated pairs")
    ax.set(xlabel="step", title=title)
axes[0].legend(frameon=False, loc="center right")
axes[0].set_ylabel("similarity")
plt.show()

# %%
healthy, stuck = (run["alignment"] - unrelated_similarity(run) for run in pair.values())
level = pair["hard triplet: the two stay together"]["alignment"][-1]
print(f"at the end true pairs stand out by {healthy[-1]:.2f} with AdOpt, by {stuck[-1]:.2f} with the hard triplet")
assert healthy[-1] > 0.3 and np.abs(stuck).max() < 0.02  # from the first step to the last
reveal("4.2", my_guess)

# %% [markdown]
# The collapsed run ends with an alignment not far below the healthy one. But *every* pair has that similarity, true or
# wrong: if all similarities are $c$, alignment is $c$ and uniformity is $\log e^c = c$. So do not look for an alignment
# of 1. **The sign of collapse is that alignment rises and the similarity of unrelated pairs rises with it.**
#
# Does it mean that the photos have become one clump and the captions another? That does **not** follow. All that the log
# knows are similarities *across* the two kinds. Here is a space with exactly the same numbers in which the captions are
# one point and the photos are not a clump at all:

# %%
caption = torch.zeros(64)
caption[0] = 1.0  # all captions
sideways = torch.cat(
    [torch.zeros(50, 1), normalize(torch.randn(50, 63, generator=generator))], dim=1
)  # at right angles to it
fan = level * caption + (1 - level**2) ** 0.5 * sideways  # 50 photos of length 1
across, within = fan @ caption, fan @ fan.T
between_photos = float((within.sum() - within.trace()) / (50 * 49))
print(f"every photo with every caption: {float(across.mean()):.2f}; two photos with each other: {between_photos:.2f}")
assert torch.allclose(across, torch.tensor(float(level))) and between_photos < level / 2

# %% [markdown]
# To know whether each kind has collapsed one has to measure *within* each kind, as Wang and Isola do. The log of a run
# does not; the model would.

# %% [markdown]
# ## Exercises
#
# **1.** InfoNCE, the loss of the next lesson, contains $\log\,\mathbb{E}\,e^{\text{sim}/\tau}$ with a temperature
# $\tau = 0.05$. So there is a uniformity inside it. Which $t$ of Wang and Isola does it use, and what constant has to
# be added?
#
# <details><summary>Hint</summary>Compare with $-2t + \log\,\mathbb{E}\,e^{2t\,\text{sim}}$. What must $2t$
# be?</details>

# %% tags=["exercise"]
t, constant = ..., ...  # your turn

# %% tags=["check"]
check("4.1", t, constant)

# %% tags=["solution"]
# Solution
temperature = 0.05
t = 1 / (2 * temperature)
constant = 2 * t
inside_info_nce = ((y @ x.T) / temperature).exp().mean().log()
assert torch.isclose(inside_info_nce, uniform_wi(x, y, t) + constant)
print(f"t = 1 / (2τ) = {t:.0f}, constant = {constant:.0f}: a large t, so only the nearest pairs count")
check("4.1", t, constant)

# %% [markdown]
# **2.** The paper measures uniformity across photos and captions. Find four photos and four captions on the circle for
# which the paper's uniformity is as low as it can be, −1, though all four photos are the same point. What do
# Wang and Isola's numbers within each kind say? Which of the paper's two numbers gives it away?
#
# <details><summary>Hint</summary>All similarities must be −1.</details>

# %% tags=["exercise"]
four_photos, four_texts = ..., ...  # each of shape (4, 2)

# %% tags=["check"]
check("4.2", four_photos, four_texts)

# %% tags=["solution"]
# Solution
four_photos = torch.tensor([[0.0, 1.0]]).repeat(4, 1)
four_texts = -four_photos
across = four_texts @ four_photos.T
assert torch.isclose(uniformity(across), torch.tensor(-1.0))
assert uniform_within(four_photos) == 0 and uniform_within(four_texts) == 0  # the worst there is
assert torch.isclose(alignment(across), torch.tensor(-1.0))
print("across: −1, 'perfect'. Within each kind: 0, two collapsed clumps. Only alignment, −1, gives it away.")
check("4.2", four_photos, four_texts)

# %% [markdown]
# **3.** What does $\log\,\mathbb{E}\,e^{\text{sim}}$ add to the plain mean of the similarities? For a narrow
# distribution it is close to *mean + variance / 2*. Check it on the gallery.
#
# <details><summary>Hint</summary><code>similarities.mean()</code> and <code>similarities.var()</code>.</details>

# %% tags=["exercise"]
estimate = ...  # your turn

# %% tags=["check"]
check("4.3", estimate, similarities=similarities)

# %% tags=["solution"]
# Solution
estimate = similarities.mean() + similarities.var() / 2
assert abs(estimate - uniformity(similarities)) < 0.01
print("The estimate is within 0.01: uniformity is the mean similarity, plus a small charge for uneven ones.")
check("4.3", estimate, similarities=similarities)

# %% [markdown]
# ## Five questions
#
# Choose, then unfold what you chose: every option says why it is right or wrong.

# %%
quiz("04_alignment_uniformity")

# %% [markdown]
# ## What the paper says, what we see
#
# | the paper | here |
# |---|---|
# | Alignment: the larger, the better the model (section 3.3) | Only together with uniformity. A space on one point has alignment 1 and finds nothing; a collapsed run has nearly as much as a good one. |
# | Uniformity lies in [0, 1] and measures how uniform the space is | *Lower* is more uniform, which the text does not say. Its range is [−1, 1]: exercise 2 reaches −1. |
# | Both follow Wang and Isola | Yes, up to constants: 2 − 2·alignment, and $t = \tfrac12$ plus 1. But across photos and captions, not within each. |
# | One uniformity | The authors' code has another: the mean of exp(−sim) without the true pairs. There *higher* is more uniform. |
#
# With these two numbers one can steer training: how many wrong answers should the model learn from right now? Next:
# [AdOpt and the K schedule](05_adopt.ipynb).
#
# ## References
#
# - Zhang et al., *Improving Visual-Semantic Embedding with Adaptive Pooling and Optimization Objective*, EACL 2023,
#   [arXiv:2210.02206](https://arxiv.org/abs/2210.02206), section 3.3.
# - Wang and Isola, *Understanding Contrastive Representation Learning through Alignment and Uniformity on the
#   Hypersphere*, ICML 2020, [arXiv:2005.10242](https://arxiv.org/abs/2005.10242).
# - Liang et al., *Mind the Gap: Understanding the Modality Gap in Multi-modal Contrastive Representation Learning*,
#   NeurIPS 2022, [arXiv:2203.02053](https://arxiv.org/abs/2203.02053): photos and captions in two separate cones.
