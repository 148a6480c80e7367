import math

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


# Families

SMALLEST = {  # of each module of timm: a small network, and the smallest size in pixels at which it has 4 places
    "byoanet": ("halonet_h1", 256), "cait": ("cait_xxs24_224", 64), "coat": ("coat_tiny", 64),
    "convit": ("convit_tiny", 64), "convmixer": ("convmixer_768_32", 64), "cpubone": ("cpubone_nano", 64),
    "crossvit": ("crossvit_tiny_240", 240), "csatv2": ("csatv2", 128), "cspnet": ("cs3darknet_focus_s", 64),
    "davit": ("davit_tiny", 64), "deit": ("deit_tiny_distilled_patch16_224", 64), "dla": ("dla46x_c", 64),
    "dpn": ("dpn48b", 64), "edgenext": ("edgenext_xx_small", 64), "efficientformer": ("efficientformer_l1", 224),
    "efficientformer_v2": ("efficientformerv2_s0", 64), "efficientvim": ("efficientvim_m1", 128),
    "efficientvit_mit": ("efficientvit_b0", 64), "efficientvit_msra": ("efficientvit_m0", 128),
    "eva": ("eva02_tiny_patch14_224", 56), "fasternet": ("fasternet_t0", 64), "fastvit": ("fastvit_t8", 64),
    "focalnet": ("focalnet_tiny_srf", 64), "gcvit": ("gcvit_xxtiny", 64), "ghostnet": ("ghostnet_050", 64),
    "hardcorenas": ("hardcorenas_b", 64), "hgnet": ("hgnetv2_b0", 64), "hiera": ("hiera_tiny_224", 128),
    "hieradet_sam2": ("sam2_hiera_tiny", 64), "hrnet": ("hrnet_w18_small", 64), "iformer": ("iformer_t", 64),
    "inception_next": ("inception_next_atto", 64), "inception_resnet_v2": ("inception_resnet_v2", 128),
    "inception_v3": ("inception_v3", 128), "inception_v4": ("inception_v4", 128), "lcnetv2": ("lcnetv2_small", 64),
    "levit": ("levit_128s", 128), "lowformer": ("lowformer_b0", 64), "mambaout": ("test_mambaout", 64),
    "maxxvit": ("coatnet_pico_rw_224", 64), "metaformer": ("poolformerv2_s12", 64), "mlp_mixer": ("gmlp_ti16_224", 64),
    "mobilenetv3": ("lcnet_035", 64), "mobilevit": ("mobilevit_xxs", 64), "mvitv2": ("mvitv2_tiny", 64),
    "nest": ("nest_tiny", 64), "nextvit": ("nextvit_small", 64), "nfnet": ("test_nfnet", 64), "pit": ("pit_ti_224", 64),
    "pvt_v2": ("pvt_v2_b0", 64), "rdnet": ("rdnet_tiny", 64), "regnet": ("regnetx_002", 64),
    "repghost": ("repghostnet_050", 64), "repvit": ("repvit_m1", 64), "res2net": ("res2next50", 64),
    "resnest": ("resnest14d", 64), "resnet": ("test_resnet", 64), "resnetv2": ("resnetv2_18", 64),
    "rexnet": ("rexnet_100", 64), "selecsls": ("selecsls42", 128), "senet": ("legacy_seresnet18", 64),
    "sequencer": ("sequencer2d_s", 64), "shvit": ("shvit_s1", 128), "sknet": ("skresnet18", 64),
    "starnet": ("starnet_s050", 64), "swiftformer": ("swiftformer_xs", 64),
    "swin_transformer": ("swin_tiny_patch4_window7_224", 64), "swin_transformer_v2": ("swinv2_tiny_window16_256", 64),
    "swin_transformer_v2_cr": ("swinv2_cr_tiny_224", 64), "tiny_vit": ("tiny_vit_5m_224", 64),
    "tnt": ("tnt_s_legacy_patch16_224", 64), "tresnet": ("tresnet_m", 64), "twins": ("twins_svt_small", 64),
    "visformer": ("visformer_tiny", 64), "vision_transformer": ("test_vit", 64),
    "vision_transformer_hybrid": ("vit_tiny_r_s16_p8_224", 64),
    "vision_transformer_relpos": ("vit_srelpos_small_patch16_224", 64), "vitamin": ("vitamin_small_224", 64),
    "volo": ("volo_d1_224", 64), "vovnet": ("ese_vovnet19b_slim_dw", 64), "xception": ("legacy_xception", 64),
    "xception_aligned": ("xception41p", 64), "xcit": ("xcit_nano_12_p16_224", 64),
    "beit": ("beit_base_patch16_224", 64), "byobnet": ("test_byobnet", 64), "convnext": ("test_convnext", 64),
    "densenet": ("densenet121", 64), "efficientnet": ("test_efficientnet", 64),
    "mobilenetv5": ("mobilenetv5_base", 64), "naflexvit": ("naflexvit_base_patch16_gap", 64),
    "nasnet": ("nasnetalarge", 64), "pnasnet": ("pnasnet5large", 64), "qwen3_vit": ("qwen3_vit_88m", 64),
    "vgg": ("vgg11_bn", 64), "vision_transformer_sam": ("samvit_base_patch16_224", 64),
}  # fmt: skip
TOO_LARGE = {"deepseek_vit", "gemma4_vit"}  # their smallest networks have more than 150 million weights


def test_every_family_of_timm_is_tried():
    assert set(timm.list_modules()) <= set(SMALLEST) | TOO_LARGE


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # inception_next has some
@pytest.mark.parametrize("family", SMALLEST)
def test_every_family_of_timm_gives_a_square_of_features(family, monkeypatch):
    for draw in ("uniform_", "normal_", "erfinv_"):  # only shapes are of interest: weights of 0 take no time
        monkeypatch.setattr(torch.Tensor, draw, lambda tensor, *_, **__: tensor.zero_())
    name, size = SMALLEST[family]
    backbone = Backbone(name, size, "grid").eval()
    with torch.inference_mode():
        features = backbone(torch.rand(1, 3, size, size))
    side = math.isqrt(features.shape[1])
    assert side >= 2
    assert features.shape == (1, side * side, backbone.dim)


@pytest.mark.parametrize(
    ("name", "size", "shape", "oracle"),
    [
        ("coat_lite_tiny", 64, (2, 4, 320), lambda net, x: net.forward_features(x)[:, 1:]),  # a class token first
        ("coat_tiny", 64, (2, 4, 152), lambda net, x: net.forward_features(x)[2][:, 1:]),  # three scales
        ("coatnet_pico_rw_224", 64, (2, 4, 512), lambda net, x: net.forward_features(x).flatten(2).mT),
        ("levit_128s", 128, (2, 4, 384), lambda net, x: net.forward_features(x)),
        ("pit_ti_distilled_224", 64, (2, 4, 256), lambda net, x: pit_map(net, x).flatten(2).mT),  # gives class tokens
        ("xcit_nano_12_p16_224", 64, (2, 16, 128), lambda net, x: net.forward_features(x)[:, 1:]),
    ],
)
def test_networks_with_an_output_of_their_own_give_places_too(name, size, shape, oracle):
    torch.manual_seed(0)
    backbone = Backbone(name, size, "grid").eval()
    pixels = torch.rand(2, 3, size, size)
    with torch.inference_mode():
        features = backbone(pixels)
    with torch.no_grad():
        expected = oracle(backbone.net, (pixels - backbone.mean) / backbone.std)
    assert features.shape == shape
    assert backbone.dim == shape[2]
    torch.testing.assert_close(features, expected, rtol=1e-3, atol=1e-3)


def pit_map(net, pixels):
    """The places in the last stage of a PiT, from its own parts."""
    places = net.pos_drop(net.patch_embed(pixels) + net.pos_embed)
    tokens = net.cls_token.expand(len(places), -1, -1)
    return net.transformers((places, tokens))[0]


def test_a_network_without_places_is_refused_with_what_it_gives(monkeypatch):
    create = timm.create_model

    def summarise(*names, **options):
        net = create(*names, **options)
        net.forward_features = lambda pixels: pixels.mean((2, 3))
        return net

    monkeypatch.setattr(timm, "create_model", summarise)
    monkeypatch.delattr(timm.models.EfficientNet, "forward_intermediates")
    message = r"test_efficientnet cannot be a grid backbone at 64 px: it gives shape \(1, 3\), neither a feature map"
    with pytest.raises(ValueError, match=message):
        Backbone("test_efficientnet", 64, "grid")


def test_a_size_that_a_network_does_not_take_is_refused():
    with pytest.raises(ValueError, match=r"efficientformer_l1 cannot be a grid backbone at 64 px: ."):
        Backbone("efficientformer_l1", 64, "grid")
