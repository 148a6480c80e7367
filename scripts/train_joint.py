"""Train the shipped models: `grid-minilm` and `grid-bigru` together, over one backbone, on COCO and Flickr30K.

    python scripts/pretrained.py --out pretrained
    python scripts/train_joint.py --coco data/coco --flickr data/flickr30k --pretrained pretrained --out runs/joint \\
        --more-captions captions_without_photos.json --minutes 80
    python scripts/train_joint.py … --start runs/joint --frozen-stages 4 --out runs/again --minutes 70

Stem and first stages of EfficientNet-Lite2 stay frozen; their maps at 288 px, plain and mirrored, are computed once
(5 to 7 GB in `--out`). The other stages learn, with crops of the maps, together with MiniLM's last four layers, a BiGRU
with character n-grams, and the projections and poolings of both. Each batch is of one data set, so that negatives are
hard. The learning rate follows the time that is left of `--minutes`. Every ten minutes both averages are validated and
a checkpoint is written, from which `--resume` goes on. At the end OUT/minilm and OUT/bigru are whole models. `--start`
begins with the models of a run that has ended, at the full learning rate again, and uses what it computed. What is
computed once belongs to these photos and captions: for others take another OUT. `--more-captions` is a file in
Karpathy's layout with captions of photos that are not here; the BiGRU begins with these. With four frozen stages a run
took 14 GB of memory, and 10 GB with jemalloc in place of glibc's malloc (`LD_PRELOAD=libjemalloc.so.2`).
"""

import argparse
import io
import math
import time
from pathlib import Path

from vse_demo.utils.runtime import tune_process

if __name__ == "__main__":
    tune_process()  # before PyTorch is loaded
import numpy as np
import torch
from joint.learner import Batch, Learner
from joint.photos import frozen_maps, read_photos
from safetensors import safe_open
from safetensors.torch import load_file, save

from vse_demo import evaluate
from vse_demo.data.layouts import read_captions
from vse_demo.data.typos import with_typo
from vse_demo.encoders import pad_tokens
from vse_demo.evaluation import Metrics
from vse_demo.training.log import Log
from vse_demo.utils.files import write_atomic

SIDE = 18  # of a map at 288 px
CROPS = {12: 0.2, 14: 0.35, 16: 0.25, 18: 0.2}
LATE_CROPS = {14: 0.2, 16: 0.3, 18: 0.5}  # at the end more like those of a whole photo
TYPOS = 0.2  # share of captions that have one
CAPTION_PAIRS = 128
LOG, CHECKPOINT = "log.jsonl", "last.safetensors"


def parse_arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("coco", "flickr", "pretrained", "more-captions", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=80, help="of training, validation not counted")
    parser.add_argument("--batch-size", type=int, default=192)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--frozen-stages", type=int, default=5, help="of the backbone, after its stem")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--start", type=Path, help="OUT of a run that has ended")
    return parser.parse_args()


def main() -> None:
    """Begin a run or go on with one."""
    chosen = parse_arguments()
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    if not chosen.resume and (chosen.out / LOG).exists():
        raise SystemExit(f"{chosen.out} holds a run already: go on with --resume, or choose another folder")
    chosen.out.mkdir(parents=True, exist_ok=True)
    JointRun(chosen).train(chosen.minutes * 60)


class JointRun:
    """The data, the learner, and where the run is."""

    def __init__(self, chosen: argparse.Namespace):
        self.out, self.batch_size = chosen.out, chosen.batch_size
        self.photos, stages = read_photos(chosen.coco, chosen.flickr), chosen.frozen_stages
        self.more = read_captions(chosen.more_captions)
        captions = [text for own in self.photos.captions[: self.photos.training] for text in own]
        self.learner = Learner(chosen.pretrained, captions + [text for own in self.more for text in own], stages)
        self.random = np.random.default_rng(0)
        backbone, files, computed = self.learner.backbone, self.photos.files, chosen.start or self.out
        self.plain = frozen_maps(backbone, stages, files, computed / f"maps{stages}.npy")
        files, path = files[: self.photos.training], computed / f"mirrored{stages}.npy"
        self.mirrored = frozen_maps(backbone, stages, files, path, mirrored=True)
        self.teacher = teacher_vectors(self.learner, captions, computed / "teacher.npy")
        if chosen.start is not None:  # after the teacher, which is MiniLM as it was before any photo
            self.learner.load(chosen.start)
        self.first_caption = np.cumsum([0, *(len(own) for own in self.photos.captions)])
        self.queues: dict[str, list[int]] = {"coco": [], "flickr": []}
        self.seconds = 0.0  # of training so far
        if (self.out / CHECKPOINT).exists():
            self.load_checkpoint()
        self.log = Log(self.out / LOG, self.learner.steps)

    def train(self, seconds: float) -> None:
        """Go on until so many seconds have been trained."""
        validated = self.seconds
        while (progress := self.seconds / seconds) < 1:
            started = time.monotonic()
            row = self.learner.step(self.draw_batch(progress), progress, self.random)
            self.seconds += time.monotonic() - started
            if not math.isfinite(row["minilm"] + row["bigru"]):
                raise FloatingPointError(f"the loss is no number at step {row['step']}")
            if row["step"] % 10 == 0:
                self.log.write({**row, "seconds": round(self.seconds), "progress": round(progress, 4)})
            if self.seconds - validated > 600:
                validated = self.seconds
                self.write_validation()
                self.save_checkpoint()
        self.write_validation()
        self.save_checkpoint()
        with self.learner.averaged():
            for name, model in self.learner.models.items():
                model.save_pretrained(self.out / name)

    def draw_batch(self, progress: float) -> Batch:
        """Photos of one data set, a crop of each map, two captions of each where there are two."""
        name = "flickr" if self.random.random() < (0.3 if progress < 0.7 else 0.45) else "coco"
        if len(self.queues[name]) < self.batch_size:
            self.queues[name] = self.random.permutation(self.photos.parts[name, "train"]).tolist()
        chosen = [self.queues[name].pop() for _ in range(self.batch_size)]
        crops = CROPS if progress < 0.85 else LATE_CROPS
        side = int(self.random.choice(list(crops), p=list(crops.values())))
        maps = np.empty((self.batch_size, side, side, self.plain.shape[-1]), np.float32)
        captions, image_ids, numbers = [], [], []
        for place, photo in enumerate(chosen):
            y, x = self.random.integers(0, SIDE + 1 - side, 2)
            source = self.mirrored if self.random.random() < 0.5 else self.plain
            maps[place] = source[photo, y : y + side, x : x + side]
            own = self.photos.captions[photo]
            for number in self.random.permutation(len(own))[:2]:
                typo = self.random.random() < TYPOS
                captions.append(with_typo(own[number].lower(), self.random) if typo else own[number])
                image_ids.append(place)
                numbers.append(self.first_caption[photo] + number)
        pairs = self.draw_caption_pairs()
        teacher = torch.from_numpy(self.teacher[numbers]).float()
        return Batch(torch.from_numpy(maps), captions, torch.tensor(image_ids), teacher, pairs)

    def draw_caption_pairs(self) -> list[list[str]]:
        """Two captions of each of some photos that are not here: first ones, second ones."""
        chosen = self.random.choice(len(self.more), CAPTION_PAIRS, replace=False)
        both = [self.random.choice(self.more[photo], 2, replace=False) for photo in chosen]
        return [[str(pair[side]) for pair in both] for side in (0, 1)]

    def validate(self) -> dict[str, Metrics]:
        """Both models and their ensemble on both validation sets, with averaged weights."""
        found = {}
        with self.learner.averaged(), torch.inference_mode():
            for name in ("flickr", "coco"):
                numbers = self.photos.parts[name, "val"]
                captions = [text for photo in numbers for text in self.photos.captions[photo]]
                image_ids = torch.tensor([place for place, n in enumerate(numbers) for _ in self.photos.captions[n]])
                images = self.embed_photos(numbers)
                texts = {key: model.encode_texts(captions) for key, model in self.learner.models.items()}
                for key in images:
                    found[f"{name}/{key}"] = evaluate(images[key], texts[key], image_ids)
                together = [torch.cat(list(side.values()), 1) / math.sqrt(2) for side in (images, texts)]
                found[f"{name}/ensemble"] = evaluate(*together, image_ids)
        return found

    def embed_photos(self, numbers: np.ndarray) -> dict[str, torch.Tensor]:
        """Unit vectors of photos by both models, in full precision."""
        parts: dict[str, list[torch.Tensor]] = {name: [] for name in self.learner.models}
        net = self.learner.net
        for start in range(0, len(numbers), 64):
            x = torch.from_numpy(self.plain[numbers[start : start + 64]]).float().permute(0, 3, 1, 2)
            for stage in net.blocks[self.learner.frozen_stages :]:
                x = stage(x)
            features = net.bn2(net.conv_head(x)).flatten(2).mT
            for name, model in self.learner.models.items():
                parts[name].append(model.embed_image_features(features))
        return {name: torch.cat(each) for name, each in parts.items()}

    def write_validation(self) -> None:
        """Validate, into the log and for who watches."""
        found = self.validate()
        self.log.write({"step": self.learner.steps, "validation": found})
        print(self.learner.steps, {key: round(each["rsum"], 1) for key, each in found.items()}, flush=True)

    def save_checkpoint(self) -> None:
        """Weights, averages, Adam's state and the time, in one file that appears whole."""
        learner, tensors = self.learner, {}
        for parameter in learner.trained:
            name = learner.names[id(parameter)]
            tensors |= {f"model.{name}": parameter.detach().clone(), f"average.{name}": learner.average[name].clone()}
            state = learner.optimizer.state[parameter]
            tensors |= {f"adam.{key}.{name}": value.clone() for key, value in state.items()}
        tensors |= {f"buffer.{name}": value.clone() for name, value in self.norm_statistics().items()}
        about = {"step": learner.steps, "seconds": self.seconds, "frozen_stages": learner.frozen_stages}
        write_atomic(self.out / CHECKPOINT, save(tensors, {key: str(value) for key, value in about.items()}))

    def load_checkpoint(self) -> None:
        """Go on from the last checkpoint, with fresh random numbers."""
        path, learner = self.out / CHECKPOINT, self.learner
        with safe_open(path, "pt") as file:
            about = file.metadata()
        if int(about["frozen_stages"]) != learner.frozen_stages:
            raise SystemExit(f"{self.out} has --frozen-stages {about['frozen_stages']}: go on with that")
        stored = load_file(path)
        learner.steps, self.seconds = int(about["step"]), float(about["seconds"])
        with torch.no_grad():
            for parameter in learner.trained:
                name = learner.names[id(parameter)]
                parameter.copy_(stored[f"model.{name}"])
                learner.average[name].copy_(stored[f"average.{name}"])
                keys = ("step", "exp_avg", "exp_avg_sq")
                learner.optimizer.state[parameter] = {key: stored[f"adam.{key}.{name}"] for key in keys}
            for name, value in self.norm_statistics().items():
                value.copy_(stored[f"buffer.{name}"])
        self.random = np.random.default_rng(learner.steps)
        torch.manual_seed(learner.steps)

    def norm_statistics(self) -> dict[str, torch.Tensor]:
        """The running statistics of the projections' batch norms."""
        return {
            name: value
            for name, value in self.learner.models.named_buffers()
            if "backbone" not in name and value.is_floating_point()
        }


def teacher_vectors(learner: Learner, captions: list[str], path: Path) -> np.ndarray:
    """What MiniLM thinks of the captions before it has seen a photo: unit vectors, the means of its token states."""
    if path.exists():
        return np.load(path)
    tokens = learner.minilm.tokenizer.encode(captions)
    order = sorted(range(len(captions)), key=lambda number: len(tokens[number]))
    vectors = np.zeros((len(captions), 384), np.float16)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        for start in range(0, len(order), 256):
            chosen = order[start : start + 256]
            padded, mask = pad_tokens([tokens[number] for number in chosen])
            states = learner.minilm.text_encoder.states(padded, mask).float() * mask.unsqueeze(-1)
            vectors[chosen] = torch.nn.functional.normalize(states.sum(1), dim=1).half().numpy()
    content = io.BytesIO()
    np.save(content, vectors)
    write_atomic(path, content.getvalue())
    return vectors


if __name__ == "__main__":
    main()
