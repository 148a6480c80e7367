"""How the shipped models learn: fast late stages, soft targets, and the batches of a run."""

import json
import shutil
import sys

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from support import ROOT, captions_of, paint
from torch.autograd import gradcheck
from transformers import BertConfig, BertModel

from vse_demo.utils.files import write_json

sys.path.insert(0, str(ROOT / "scripts"))
import ship_model
import train_joint
from joint.late_stages import Depthwise, late_features
from joint.learner import MODEL
from joint.targets import OWN, TEMPERATURE, ensemble_targets, soft_targets, target_loss


def plain_depthwise(rows, weight, bias, stride):
    """timm's way: "same" padding as TensorFlow has it, then a grouped convolution."""
    size, side = weight.shape[-1], rows.shape[1]
    missing = max((-(-side // stride) - 1) * stride + size - side, 0)
    before = missing // 2
    image = F.pad(F.relu6(rows).permute(0, 3, 1, 2), (before, missing - before) * 2)
    return F.relu6(F.conv2d(image, weight, bias, stride, groups=len(weight))).permute(0, 2, 3, 1)


@pytest.mark.parametrize(("side", "size", "stride"), [(7, 5, 1), (8, 5, 2), (6, 3, 1), (9, 3, 2), (3, 5, 1)])
def test_the_fused_depthwise_convolution_is_the_plain_one(side, size, stride):
    torch.manual_seed(side)
    inputs = [torch.randn(2, side, side, 5) * 4, torch.randn(5, 1, size, size), torch.randn(5)]
    results = []
    for function in (Depthwise.apply, plain_depthwise):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        out = function(*leaves, stride)
        out.backward(torch.linspace(-1, 1, out.numel()).view_as(out))
        results.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("frozen_stages", "channels"), [(5, 112), (4, 80)])
def test_the_fast_late_stages_are_timms_up_to_half_precision(frozen_stages, channels):
    torch.manual_seed(0)
    net = timm.create_model("tf_efficientnet_lite0", num_classes=0).eval()
    maps = torch.randn(2, 8, 8, channels).relu()
    ours = late_features(net, frozen_stages, maps)
    theirs = maps.permute(0, 3, 1, 2)
    for stage in net.blocks[frozen_stages:]:
        theirs = stage(theirs)
    theirs = net.bn2(net.conv_head(theirs)).flatten(2).mT
    assert (ours - theirs).norm() < 0.03 * theirs.norm()
    weights = [net.blocks[5][0].conv_dw.weight, net.blocks[6][0].conv_pwl.weight, net.bn2.bias]
    direction = torch.randn_like(ours)
    for mine, plain in zip(
        torch.autograd.grad((ours * direction).sum(), weights),
        torch.autograd.grad((theirs * direction).sum(), weights),
        strict=True,
    ):
        assert F.cosine_similarity(mine.flatten(), plain.flatten(), dim=0) > 0.95


def test_soft_targets_by_plain_loops():
    torch.manual_seed(0)
    teacher, image_ids, images = F.normalize(torch.randn(5, 4), dim=1), torch.tensor([0, 0, 1, 2, 2]), 3
    to_images, to_captions = soft_targets(teacher, image_ids, images, softness=0.4)
    for caption in range(5):
        alike = []
        for image in range(images):
            own = [float(teacher[caption] @ teacher[other]) for other in range(5) if image_ids[other] == image]
            alike.append(OWN if image == image_ids[caption] else sum(own) / len(own))
        share = torch.tensor(alike).div(TEMPERATURE).softmax(0)
        hard = torch.tensor([float(image == image_ids[caption]) for image in range(images)])
        torch.testing.assert_close(to_images[caption], 0.6 * hard + 0.4 * share)
    torch.testing.assert_close(to_images.sum(1), torch.ones(5))
    torch.testing.assert_close(to_captions.sum(1), torch.ones(images))
    hard_only = soft_targets(teacher, image_ids, images, softness=0.0)[1]
    torch.testing.assert_close(hard_only[0], torch.tensor([0.5, 0.5, 0, 0, 0]))


def test_hard_targets_give_cross_entropy_and_gradients_are_right():
    torch.manual_seed(0)
    similarities = torch.randn(4, 4, dtype=torch.float64).mul(0.2).requires_grad_()
    diagonal = torch.eye(4, dtype=torch.float64)
    expected = F.cross_entropy(similarities / TEMPERATURE, torch.arange(4))
    expected = (expected + F.cross_entropy(similarities.T / TEMPERATURE, torch.arange(4))) / 2
    torch.testing.assert_close(target_loss(similarities, diagonal, diagonal), expected)
    assert gradcheck(lambda x: target_loss(x, diagonal, diagonal), similarities)
    to_images, to_captions = ensemble_targets([similarities, similarities + 1])
    torch.testing.assert_close(to_images, (similarities.detach() / TEMPERATURE).softmax(1))
    assert not to_captions.requires_grad


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of a run on two tiny data sets, from parts that have learned nothing."""
    folder = tmp_path_factory.mktemp("joint")
    pretrained, others = folder / "pretrained", folder / "others.json"
    for offset, name in enumerate(("coco", "flickr30k")):
        (folder / name / "images").mkdir(parents=True)
        records = [record(8 * offset + number, "train" if number < 4 else "val") for number in range(6)]
        for number, each in enumerate(records):
            paint(8 * offset + number).save(folder / name / "images" / each["filename"])
        write_json(folder / name / f"dataset_{name}.json", {"images": records, "dataset": name})
    alone = [record(number % 64, "train") for number in range(train_joint.CAPTION_PAIRS)]
    write_json(others, {"images": alone, "dataset": "flickr30k"})
    torch.manual_seed(0)
    bert = BertModel(BertConfig(hidden_size=384, num_hidden_layers=3, intermediate_size=64))
    bert.save_pretrained(pretrained / "minilm")
    shutil.copy(ROOT / "assets" / "models" / "grid-minilm" / "tokenizer.json", pretrained / "minilm")
    save_file(timm.create_model(MODEL["backbone"]).state_dict(), pretrained / f"{MODEL['backbone']}.safetensors")
    save_file({"vectors": torch.randn(2, 300)}, pretrained / "word_vectors.safetensors", {"words": "red field"})
    places = {"coco": folder / "coco", "flickr": folder / "flickr30k", "more-captions": others}
    flags = [f"--{flag}={place}" for flag, place in {**places, "pretrained": pretrained}.items()]
    return [*flags, "--batch-size=4", "--minutes=0.00001"]


def record(number: int, split: str) -> dict:
    """An image in Karpathy's layout."""
    sentences = [{"raw": caption} for caption in captions_of(number)]
    return {"filename": f"{number}.png", "split": split, "sentences": sentences}


@pytest.mark.slow
def test_a_run_goes_on_from_its_checkpoint_and_its_log_has_each_step_once(arguments, tmp_path, monkeypatch):
    out = tmp_path / "run"
    monkeypatch.setattr(sys, "argv", ["train_joint.py", *arguments, f"--out={out}"])
    train_joint.main()  # a single step: the first one is longer than the time
    assert {path.name for path in out.iterdir()} >= {"minilm", "bigru", "last.safetensors", "log.jsonl"}
    with pytest.raises(SystemExit, match="holds a run already: go on with --resume"):
        train_joint.main()
    rows = (out / "log.jsonl").read_text()
    with (out / "log.jsonl").open("a") as log:
        log.write('{"step": 2, "minilm": 1.0}\n{"step": 3, "min')  # of a run that was killed after its checkpoint

    stored = load_file(out / "last.safetensors")
    run = train_joint.JointRun(train_joint.parse_arguments())
    assert run.learner.steps == 1
    assert run.seconds > 0
    for name, value in run.learner.models.state_dict().items():
        if f"model.{name}" in stored:
            assert torch.equal(value, stored[f"model.{name}"]), name
            assert torch.equal(run.learner.average[name], stored[f"average.{name}"]), name
    assert (out / "log.jsonl").read_text() == rows
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--resume", "--frozen-stages=4"])
    with pytest.raises(SystemExit, match="has --frozen-stages 5: go on with that"):
        train_joint.JointRun(train_joint.parse_arguments())
    run.train(2 * run.seconds)
    assert run.learner.steps > 1
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    for kind in (True, False):  # a step can have two rows: what it lost, and a validation
        steps = [row["step"] for row in rows if ("validation" in row) == kind]
        assert steps == sorted(set(steps))


@pytest.mark.slow
def test_only_the_stages_after_the_frozen_ones_learn(arguments, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train_joint.py", *arguments, f"--out={tmp_path}", "--frozen-stages=4"])
    run = train_joint.JointRun(train_joint.parse_arguments())
    before = {name: value.clone() for name, value in run.learner.net.state_dict().items()}
    run.train(1e-6)
    moved = {name for name, value in run.learner.net.state_dict().items() if not torch.equal(value, before[name])}
    assert {name.split(".")[1] for name in moved if name.startswith("blocks.")} == {"4", "5", "6"}
    assert not any(name.startswith(("conv_stem", "bn1")) or "running" in name for name in moved)


@pytest.mark.slow
def test_a_run_begins_with_the_models_of_another_and_their_logs_are_joined(arguments, tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setattr(sys, "argv", ["train_joint.py", *arguments, f"--out={first}"])
    train_joint.main()
    monkeypatch.setattr(sys, "argv", ["train_joint.py", *arguments, f"--out={second}", f"--start={first}"])
    run = train_joint.JointRun(train_joint.parse_arguments())
    assert run.learner.steps == 0
    for name, model in run.learner.models.items():
        stored = load_file(first / name / "model.safetensors")
        for key, value in model.state_dict().items():
            assert torch.equal(value, stored[key]), key
    for key, value in run.learner.models.named_parameters():
        assert torch.equal(run.learner.average.get(key, value), value), key
    assert not list(second.glob("maps*"))  # those of the first run are used
    assert torch.equal(torch.from_numpy(run.teacher), torch.from_numpy(np.load(first / "teacher.npy")))
    run.train(1e-6)
    rows = ship_model.read_logs([first, second])
    assert [row["step"] for row in rows if "validation" in row] == [1, 2]

    with torch.no_grad():
        run.learner.net.blocks[4][0].conv_pw.weight += 1  # as if the first run had trained a stage more
    run.learner.bigru.save_pretrained(first / "bigru")
    with pytest.raises(SystemExit, match="some of the first 5 stages have learned: freeze fewer"):
        train_joint.JointRun(train_joint.parse_arguments())

    run.learner.bigru.tokenizer.words.reverse()
    with pytest.raises(SystemExit, match="knows other words"):
        run.learner.load(first)
