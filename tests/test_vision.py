import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

from vse_demo.data import random_view, read_image, to_pixels
from vse_demo.encoders import Backbone, ImageEncoder, fold_batch_norms
from vse_demo.utils.files import FileError

# Folding


@pytest.mark.parametrize("name", ["test_efficientnet", "resnet10t", "resnetv2_18", "densenet121"])
def test_a_folded_network_sees_the_same(name):
    net = timm.create_model(name, num_classes=0).eval()
    torch.manual_seed(0)
    for norm in [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]:
        nn.init.normal_(norm.running_mean, 0, 0.2)
        nn.init.uniform_(norm.running_var, 0.5, 2)
        nn.init.normal_(norm.bias, 0, 0.2)
    folded = fold_batch_norms(net)
    assert folded is not net
    pixels = torch.randn(2, 3, 96, 96)
    with torch.inference_mode():
        torch.testing.assert_close(folded.forward_features(pixels), net.forward_features(pixels), rtol=1e-3, atol=1e-3)


def test_batch_norms_that_follow_another_layer_are_left_alone():
    class Crossed(nn.Module):
        """Defined as convolution and norm, used the other way round."""

        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
            nn.init.constant_(self.norm.running_mean, 1.0)

        def forward_features(self, pixels):
            return self.conv(self.norm(pixels))

    net = Crossed().eval()
    assert fold_batch_norms(net) is net


def test_inference_follows_a_change_of_weights():
    backbone = Backbone("test_efficientnet", 64, "grid").eval()
    pixels = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        before = backbone(pixels)
    with torch.no_grad():
        backbone.net.conv_stem.weight.mul_(2)
    expected = backbone(pixels).detach()  # with gradients, so by the network itself
    with torch.inference_mode():
        after = backbone(pixels)
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, expected, rtol=1e-3, atol=1e-4)
    assert set(backbone.state_dict()) == {f"net.{name}" for name in backbone.net.state_dict()}


# Pixels


def test_the_whole_image_is_squeezed_to_a_square():
    image = Image.new("RGB", (40, 20), (255, 0, 51))
    image.paste((0, 255, 51), (20, 0, 40, 20))
    pixels = to_pixels([image, image], 8)
    assert pixels.shape == (2, 3, 8, 8)
    torch.testing.assert_close(pixels[1, :, 4, 0], torch.tensor([1, 0, 0.2]))
    torch.testing.assert_close(pixels[1, :, 4, 7], torch.tensor([0, 1, 0.2]))


def coordinates(width: int, height: int) -> Image.Image:
    """An image whose red is the column and whose green is the row, counted from 1: nothing in it is black."""
    columns, rows = np.meshgrid(np.arange(1, width + 1), np.arange(1, height + 1))
    return Image.fromarray(np.stack([columns, rows, columns * 0], axis=-1).astype(np.uint8))


@pytest.mark.parametrize("size", [(50, 30), (3, 200), (1, 1)])
def test_a_random_view_is_a_part_of_the_image_or_its_mirror_image(size):
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        view = np.asarray(random_view(coordinates(*size), generator)).astype(int)
        columns = view[0, :, 0] if view[0, 0, 0] <= view[0, -1, 0] else view[0, ::-1, 0]
        rows = view[:, 0, 1]
        assert 0.7 * size[0] - 0.5 <= len(columns) <= size[0]
        assert 0.7 * size[1] - 0.5 <= len(rows) <= size[1]
        assert columns.tolist() == list(range(columns[0], columns[0] + len(columns)))
        assert rows.tolist() == list(range(rows[0], rows[0] + len(rows)))
        assert 1 <= columns[0] <= columns[-1] <= size[0]
        assert 1 <= rows[0] <= rows[-1] <= size[1]


def test_random_views_differ_and_their_seed_decides():
    def views(seed: int) -> list[bytes]:
        generator = torch.Generator().manual_seed(seed)
        return [random_view(coordinates(50, 30), generator).tobytes() for _ in range(8)]

    assert views(0) == views(0)
    assert views(0) != views(1)
    assert len(set(views(0))) == 8


def test_every_other_view_is_mirrored():
    generator = torch.Generator().manual_seed(0)
    views = [np.asarray(random_view(coordinates(50, 30), generator)) for _ in range(200)]
    assert 70 < sum(view[0, 0, 0] > view[0, -1, 0] for view in views) < 130


# Backbones


@pytest.mark.parametrize(
    ("kind", "name", "size", "shape"),
    [
        ("grid", "test_efficientnet", 64, (2, 4, 256)),
        ("grid", "test_efficientnet", 96, (2, 9, 256)),
        ("grid", "test_resnet", 64, (2, 4, 96)),
        ("patch", "test_vit", 160, (2, 100, 64)),
        ("patch", "test_vit", 64, (2, 16, 64)),
    ],
)
def test_a_backbone_gives_one_feature_per_place(kind, name, size, shape):
    backbone = Backbone(name, size, kind).eval()
    assert backbone(torch.rand(2, 3, size, size)).shape == shape
    assert backbone.dim == shape[2]


@pytest.mark.parametrize(("kind", "name"), [("grid", "test_resnet"), ("patch", "test_vit")])
def test_features_are_in_reading_order(kind, name):
    backbone = Backbone(name, 128, kind).eval()
    pixels = torch.full((1, 3, 128, 128), 0.5)
    changed = pixels.clone()
    changed[..., 64:, :64] = 1  # below, on the left
    features = backbone(torch.cat([pixels, changed]))
    difference = (features[1] - features[0]).norm(dim=-1)
    side = round(len(difference) ** 0.5)
    quarters = difference.view(2, side // 2, 2, side // 2).mean((1, 3))
    assert quarters.argmax() == 2


def test_images_are_normalised_as_the_backbone_expects():
    backbone = Backbone("test_resnet", 64, "grid").eval()
    settings = backbone.net.pretrained_cfg
    pixels = torch.rand(2, 3, 64, 64)
    normal = torch.stack([(pixels[:, c] - settings["mean"][c]) / settings["std"][c] for c in range(3)], dim=1)
    expected = backbone.net.forward_features(normal).flatten(2).transpose(1, 2)
    torch.testing.assert_close(backbone(pixels), expected)


@pytest.mark.parametrize(("kind", "name"), [("grid", "test_efficientnet"), ("patch", "test_vit")])
@torch.inference_mode()
def test_the_features_of_an_image_do_not_depend_on_its_batch(images, kind, name):
    encoder = ImageEncoder(8, kind, name, 64).eval()
    decoded = [read_image(image) for image in images]
    together = encoder.extract(decoded)
    for index, image in enumerate(decoded):
        torch.testing.assert_close(encoder.extract([image])[0], together[index], rtol=1e-5, atol=1e-5)


def test_training_leaves_the_batch_statistics_alone():
    backbone = Backbone("test_efficientnet", 64, "grid").train()
    before = {name: buffer.clone() for name, buffer in backbone.named_buffers()}
    assert any("running_mean" in name for name in before)
    backbone(torch.rand(4, 3, 64, 64))
    assert all(torch.equal(buffer, before[name]) for name, buffer in backbone.named_buffers())
    assert backbone.net.training


def test_an_unknown_backbone_names_those_near_it():
    with pytest.raises(ValueError, match=r"timm has no model 'resnet_18'; near it: .*resnet"):
        Backbone("resnet_18", 64, "grid")
    with pytest.raises(ValueError, match="timm has no model 'qqq'; near it: none"):
        Backbone("qqq", 64, "grid")


def test_a_cnn_has_no_patches():
    with pytest.raises(ValueError, match="test_resnet"):
        Backbone("test_resnet", 64, "patch")


# Weights


@pytest.fixture
def weights(tmp_path):
    """A safetensors file of a random `test_efficientnet`, with its classifier, as timm publishes them."""
    torch.manual_seed(1)
    net = timm.create_model("test_efficientnet")
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    return tmp_path / "net.safetensors"


def test_weights_are_loaded_as_they_are_stored(weights):
    backbone = Backbone("test_efficientnet", 64, "grid")
    backbone.load_weights(str(weights))
    stored = load_file(weights)
    assert all(torch.equal(tensor, stored[name]) for name, tensor in backbone.net.state_dict().items())
    assert len(backbone.net.state_dict()) < len(stored)  # no classifier


@pytest.mark.parametrize("file", ["net.pth", "net.bin", "net.pt", "hub.tar"])
def test_formats_that_can_run_code_are_refused(tmp_path, file):
    torch.save({}, tmp_path / file)
    with pytest.raises(FileError, match=rf"{file} is not a \.safetensors file: other formats can run code"):
        Backbone("test_resnet", 64, "grid").load_weights(str(tmp_path / file))


def test_weights_of_another_backbone_are_refused(weights):
    with pytest.raises(
        FileError, match=r"net\.safetensors is not for test_resnet at 64 px: \S+ is missing \(and \d+ more\)"
    ):
        Backbone("test_resnet", 64, "grid").load_weights(str(weights))


@pytest.mark.parametrize("keep", [0, 100, 50_000])
def test_truncated_weights_are_refused(weights, keep):
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(FileError, match=r"net\.safetensors cannot be read as safetensors: "):
        Backbone("test_efficientnet", 64, "grid").load_weights(str(weights))


def test_missing_weights_are_named(tmp_path):
    with pytest.raises(FileError, match=r"nowhere\.safetensors"):
        Backbone("test_resnet", 64, "grid").load_weights(str(tmp_path / "nowhere.safetensors"))


def test_weights_of_another_shape_are_refused(weights):
    state = load_file(weights)
    state["conv_stem.weight"] = torch.zeros(1, 2, 3)
    save_file(state, weights)
    with pytest.raises(FileError, match=r"conv_stem\.weight"):
        Backbone("test_efficientnet", 64, "grid").load_weights(str(weights))


def test_hub_weights_fit_a_vit_of_another_image_size(monkeypatch):
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda *names, pretrained=False, **options: create(*names, **options))
    Backbone("test_vit", 64, "patch").load_weights("hub")  # timm adapts the positions to the size it is told


# Encoders


def test_frozen_matrices_are_what_fp16_can_hold():
    encoder = ImageEncoder(8, "grid", "test_efficientnet", 64)
    before = {name: parameter.detach().clone() for name, parameter in encoder.named_parameters()}
    encoder.freeze_backbone()
    assert not any(parameter.requires_grad for parameter in encoder.backbone.parameters())
    assert all(parameter.requires_grad for parameter in encoder.projection.parameters())
    for name, parameter in encoder.named_parameters():
        rounded = name.startswith("backbone") and parameter.dim() >= 2
        expected = before[name].half().float() if rounded else before[name]
        assert torch.equal(parameter, expected)


def test_an_encoder_projects_features_to_the_joint_dimension(tiny_encoder, images):
    features = tiny_encoder.extract([read_image(image) for image in images[:3]])
    mask = torch.ones(features.shape[:2], dtype=torch.bool)
    assert features.shape == (3, 4, 256)
    assert tiny_encoder(features, mask).shape == (3, 4, 8)
    torch.testing.assert_close(tiny_encoder(features[:1], mask[:1]), tiny_encoder(features, mask)[:1])


def test_a_region_encoder_takes_regions_only(images):
    encoder = ImageEncoder(8, "region", region_dim=16)
    assert encoder(torch.rand(2, 36, 16), torch.ones(2, 36, dtype=torch.bool)).shape == (2, 36, 8)
    with pytest.raises(TypeError, match="takes precomputed regions"):
        encoder.extract([read_image(images[0])])
    encoder.freeze_backbone()  # it has none
    assert all(parameter.requires_grad for parameter in encoder.parameters())


def test_features_of_another_width_are_refused():
    with pytest.raises(ValueError, match="features have 15 channels, this encoder takes 16"):
        ImageEncoder(8, "region", region_dim=16)(torch.rand(1, 2, 15), torch.ones(1, 2, dtype=torch.bool))


def test_an_unknown_kind_of_vision_names_the_choices():
    with pytest.raises(ValueError, match="unknown vision 'radar'; choose one of grid, patch, region"):
        ImageEncoder(8, "radar")
