"""What scores mean: shares against recall and loops, held-out data, and a file that is checked when it is read."""

import json
from pathlib import Path

import hostile
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression
from torch.nn.functional import normalize

from vse_demo import VSE, Ensemble, ModelConfig, evaluate
from vse_demo.calibration import (
    Calibration,
    ScoreTable,
    _search,
    calibrate,
    isotonic,
    read_calibrations,
    write_calibration,
)
from vse_demo.cli import main
from vse_demo.encoders import WordTokenizer
from vse_demo.utils.files import FileError


def world(seed=0, images=400, captions=3, noise=2.2, dim=24):
    """Images, captions that are more or less like them, and whose they are."""
    generator = torch.Generator().manual_seed(seed)
    vectors = normalize(torch.randn(images, dim, generator=generator), dim=1)
    image_ids = torch.arange(images).repeat_interleave(captions)
    spread = noise * torch.rand(len(image_ids), 1, generator=generator)
    texts = vectors[image_ids] + spread * normalize(torch.randn(len(image_ids), dim, generator=generator), dim=1)
    return vectors, normalize(texts, dim=1), image_ids


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 9)), min_size=1, max_size=30))
def test_isotonic_is_the_least_squares_fit_that_never_falls(pairs):
    values, weights = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    fitted = isotonic(values, weights)
    np.testing.assert_allclose(fitted, isotonic_regression(values, weights=weights).x, atol=1e-9)
    assert fitted @ weights == pytest.approx(values @ weights)  # as many right ones as before


def test_a_search_is_its_loops():
    images, texts, image_ids = world(images=30, captions=2)
    similarities, chosen = (texts @ images.T).numpy(), np.array([3, 17, 4, 25, 11])
    found = _search(similarities, image_ids.numpy(), chosen)
    rows = iter(found["t2i"])
    for text in range(60):
        if text // 2 in chosen:
            wrong = max(similarities[text, image] for image in chosen if image != text // 2)
            assert next(rows).tolist() == [similarities[text, text // 2], wrong, text // 2]
    for image, row in zip(chosen, found["i2t"], strict=True):
        right = max(similarities[text, image] for text in (2 * image, 2 * image + 1))
        wrong = max(similarities[text, image] for text in range(60) if text // 2 in chosen and text // 2 != image)
        assert row.tolist() == [right, wrong, image]


def test_all_first_results_together_are_right_as_often_as_recall_says():
    images, texts, image_ids = world()
    calibration, metrics = calibrate(images, texts, image_ids), evaluate(images, texts, image_ids)
    for way in ("t2i", "i2t"):
        table = calibration.table(way, 400)
        assert table.gallery == 400
        assert 100 * table.shares_above[0] == pytest.approx(metrics[way]["r1"], abs=0.01)
        assert table.share_right_above(-1) == table.shares_above[0]


def test_shares_rise_with_the_score_and_fall_with_the_size_of_the_gallery():
    tables = calibrate(*world()).t2i
    assert [table.gallery for table in tables] == [30, 100, 300, 400]
    for table in tables:
        shares = [table.share_right(score) for score in np.linspace(-1, 1, 200)]
        above = [table.share_right_above(score) for score in np.linspace(-1, 1, 200)]
        assert shares == sorted(shares)
        assert above == sorted(above)
        assert all(one >= other - 1e-9 for one, other in zip(above, shares, strict=True))
    middle = [table.share_right(0.65) for table in tables]
    assert middle == sorted(middle, reverse=True)
    assert middle[0] > middle[-1] + 0.05
    lines = [table.nothing_below for table in tables]
    assert lines == sorted(lines)  # the best of many is higher


def test_on_other_data_the_shares_are_as_promised():
    promised = calibrate(*world(seed=1, images=1000)).table("t2i", 1000)
    images, texts, image_ids = world(seed=2, images=1000)
    best, chosen = (texts @ images.T).max(1)
    shares = np.array([promised.share_right(score) for score in best.tolist()])
    right = (chosen == image_ids).double().numpy()
    for low, high in ((0.0, 0.5), (0.5, 0.9), (0.9, 1.01)):
        of = (low <= shares) & (shares < high)
        assert of.sum() > 100
        assert right[of].mean() == pytest.approx(shares[of].mean(), abs=0.05)
    assert (best < promised.nothing_below).double().mean() == pytest.approx(0.05, abs=0.02)
    assert promised.false_alarms == pytest.approx(0.05, abs=0.02)
    absent = (texts @ images.T).masked_fill(image_ids.unsqueeze(1) == torch.arange(1000), -1).max(1).values
    assert (absent >= promised.nothing_below).double().mean() == pytest.approx(promised.misses, abs=0.05)


def test_fewer_false_alarms_mean_more_misses():
    tables = [calibrate(*world(), false_alarms=share).table("t2i", 400) for share in (0.01, 0.05, 0.2)]
    assert [table.nothing_below for table in tables] == sorted(table.nothing_below for table in tables)
    assert [table.misses for table in tables] == sorted((table.misses for table in tables), reverse=True)


def test_a_sentence_about_nothing_is_told_so_more_often():
    images, texts, image_ids = world(noise=0.8)
    table = calibrate(images, texts, image_ids).table("t2i", 400)
    foreign = normalize(torch.randn(500, 24, generator=torch.Generator().manual_seed(9)), dim=1)
    told = np.mean([table.nothing_is_close(score) for score in (foreign @ images.T).max(1).values.tolist()])
    assert told > 0.9


def test_the_score_for_a_share_is_where_the_table_reaches_it():
    table = ScoreTable(9, (0.1, 0.3, 0.5), (0.2, 0.2, 0.6), (0.3, 0.4, 0.6), 0.1, 0.05, 0.5)
    assert [table.score_for(share) for share in (0.1, 0.2, 0.4, 0.6, 0.7)] == pytest.approx([0.1, 0.1, 0.4, 0.5, None])
    assert (table.share_right(0.4), table.share_right(0.0), table.share_right(2.0)) == pytest.approx((0.4, 0.2, 0.6))
    assert table.nothing_is_close(0.09)
    assert not table.nothing_is_close(0.1)


def test_the_table_of_the_nearest_size_is_taken():
    calibration = calibrate(*world())
    sizes = {gallery: calibration.table("i2t", gallery).gallery for gallery in (0, 1, 50, 60, 276, 5000)}
    assert sizes == {0: 30, 1: 30, 50: 30, 60: 100, 276: 300, 5000: 400}
    with pytest.raises(ValueError, match="unknown way to search 'both'; choose one of t2i, i2t"):
        calibration.table("both", 5)


def test_a_collapsed_model_is_never_right_and_breaks_nothing():
    point = torch.ones(100, 4) / 2
    table = calibrate(point, point, torch.arange(100)).table("t2i", 100)
    assert (table.scores, table.shares) == ((1.0,), (0.0,))
    assert table.misses == 1.0  # it cannot tell anything from anything


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (79, {}, "79 images are too few to say what a score means: at least 80"),
        (90, {"false_alarms": 0.0}, "false_alarms must be between 0 and 1, not 0.0"),
        (90, {"false_alarms": 1}, "false_alarms must be between 0 and 1, not 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(images, options, message):
    with pytest.raises(ValueError, match=message):
        calibrate(*world(images=images), **options)


def test_vectors_that_are_no_numbers_are_refused():
    images, texts, image_ids = world(images=90)
    images[3] = torch.nan
    with pytest.raises(ValueError, match="some similarities are not numbers"):
        calibrate(images, texts, image_ids)


# With a model


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Two small models of regions."""
    for name in ("a", "b"):
        torch.manual_seed(ord(name))
        config = ModelConfig(dim=8, vision="region", region_dim=4, word_dim=6, pooling="mean")
        VSE(config, WordTokenizer(["red", "blue"])).save_pretrained(tmp_path / name)
    return [tmp_path / "a", tmp_path / "b"]


def measured(fingerprint: str) -> Calibration:
    return calibrate(*world(images=100), fingerprint=fingerprint)


def test_a_calibration_lies_with_its_model_and_an_ensembles_with_its_first(folders):
    models = [VSE.from_pretrained(folder) for folder in folders]
    assert models[0].calibration is None
    ensemble = Ensemble(models)
    for owner in (models[0], ensemble):
        write_calibration(measured(owner.fingerprint()), folders[0])
    again = [VSE.from_pretrained(folder) for folder in folders]
    assert again[0].calibration == measured(models[0].fingerprint())
    assert again[1].calibration is None
    assert Ensemble(again).calibration == measured(ensemble.fingerprint())
    assert Ensemble(again[::-1]).calibration is None
    with torch.no_grad():
        next(again[0].parameters()).add_(1)
    assert again[0].calibration is None  # it was of other weights
    write_calibration(measured(models[0].fingerprint()), folders[0])
    assert len(read_calibrations(folders[0])) == 2  # in place of the older one


def test_a_model_saved_in_the_place_of_another_does_not_inherit_its_calibration(folders):
    write_calibration(measured(VSE.from_pretrained(folders[0]).fingerprint()), folders[0])
    VSE.from_pretrained(folders[1]).save_pretrained(folders[0])
    assert VSE.from_pretrained(folders[0]).calibration is None


def damaged(change) -> str:
    from dataclasses import asdict

    from vse_demo.calibration import _digest

    content = {"x": json.loads(json.dumps(asdict(measured("x"))))}
    change(content["x"])
    return json.dumps({"format": 1, "digest": _digest(content), "calibrations": content})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "cannot be read as JSON"),
        ("[]", "is no calibration"),
        ('{"format": 2}', "it has format 2, and this version reads 1"),
        ('{"format": 1, "digest": "", "calibrations": {}}', "it is not as it was written"),
        (damaged(lambda entry: entry.update(images=0)), "its sizes are missing"),
        (damaged(lambda entry: entry.update(t2i=[])), "its sizes are missing"),
        (damaged(lambda entry: entry.pop("i2t")), "is no calibration: 'i2t'"),
        (damaged(lambda entry: entry["t2i"][0].update(more=1)), "a table has other entries than it should"),
        (damaged(lambda entry: entry["t2i"][0].update(gallery=True)), "a table has other entries than it should"),
        (damaged(lambda entry: entry["t2i"][0]["scores"].reverse()), "the scores of a table do not rise"),
        (damaged(lambda entry: entry["t2i"][0]["shares"].pop()), "the scores of a table do not rise"),
        (damaged(lambda entry: entry["t2i"][0]["shares"].reverse()), "the shares of a table fall"),
        (damaged(lambda entry: entry["t2i"][0].update(misses=1.5)), "a share is not between 0 and 1"),
        (damaged(lambda entry: entry["t2i"][0].update(nothing_below="nan")), "a score is not a number"),
        (damaged(lambda entry: entry["t2i"][0].update(shares=["many"])), "could not convert string to float"),
    ],
)
def test_a_broken_calibration_is_refused_with_its_name(folders, text, message):
    (folders[0] / "calibration.json").write_text(text)
    with pytest.raises(FileError, match=rf"calibration\.json .*{message}"):
        VSE.from_pretrained(folders[0])


@pytest.mark.parametrize("damage", hostile.DAMAGES)
def test_a_damaged_calibration_is_refused_or_as_before(folders, damage):
    write_calibration(measured("x"), folders[0])
    path = folders[0] / "calibration.json"
    path.write_bytes(hostile.DAMAGES[damage](path.read_bytes()))
    try:
        assert read_calibrations(folders[0]) == {"x": measured("x")}
    except FileError as error:
        assert str(path) in str(error)  # noqa: PT017 - it says where, if it is refused at all


@pytest.mark.slow
def test_the_command_measures_and_stores(tmp_path, write_karpathy, capsys):
    torch.manual_seed(0)
    config = ModelConfig(dim=8, backbone="test_efficientnet", image_size=64, word_dim=6)
    VSE(config, WordTokenizer(["red", "blue"])).save_pretrained(tmp_path / "model")
    data = write_karpathy(tmp_path / "data", {"train": 2, "val": 45})
    assert main(["calibrate", "--model", str(tmp_path / "model"), "--data", str(data)]) == 1
    assert "45 images are too few to say what a score means" in capsys.readouterr().err
    assert not (tmp_path / "model" / "calibration.json").exists()
    more = write_karpathy(tmp_path / "more", {"train": 50, "val": 45})
    arguments = ["calibrate", "--model", str(tmp_path / "model"), "--data", str(data), "--data", str(more)]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "images, 4" in out
    assert "nothing below   false alarms   misses" in out
    calibration = VSE.from_pretrained(tmp_path / "model").calibration
    assert calibration is not None
    assert calibration.captions == 450
