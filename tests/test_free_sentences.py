"""Sixty sentences and the photos that fit them: counted right, and about photos that are there."""

import json
import sys
from collections import Counter

from support import ROOT

from vse_demo.utils.paths import shipped

sys.path.insert(0, str(ROOT / "scripts"))
from free_sentences import FILE, count_found, first_images

ENTRIES = [
    {"kind": "people", "sentence": "a couple", "photos": ["1.jpg", "2.jpg"]},
    {"kind": "people", "sentence": "a child", "photos": ["3.jpg"]},
    {"kind": "places", "sentence": "a beach", "photos": ["4.jpg"]},
]


def test_a_fitting_photo_counts_first_or_among_the_first_few() -> None:
    ranked = [["2.jpg", "9.jpg", "1.jpg"], ["9.jpg", "3.jpg"], ["7.jpg", "8.jpg", "9.jpg", "4.jpg"]]
    assert count_found(ranked, ENTRIES, few=3) == {
        "people": {"sentences": 2, "first": 1, "among": 2},
        "places": {"sentences": 1, "first": 0, "among": 0},
        "total": {"sentences": 3, "first": 1, "among": 2},
    }
    assert count_found(ranked, ENTRIES, few=4)["places"] == {"sentences": 1, "first": 0, "among": 1}


def test_a_search_that_finds_nothing_counts_as_no_hit() -> None:
    assert count_found([[], [], []], ENTRIES)["total"] == {"sentences": 3, "first": 0, "among": 0}


def test_the_first_photo_of_each_sentence_is_told_with_whether_it_fits() -> None:
    rows = first_images([["2.jpg"], ["9.jpg", "3.jpg"], ["4.jpg"]], ENTRIES)
    assert [(row["first"], row["fits"]) for row in rows] == [("2.jpg", True), ("9.jpg", False), ("4.jpg", True)]


def test_every_sentence_is_there_once_and_its_photos_are_in_the_gallery() -> None:
    asked = json.loads(FILE.read_text(encoding="utf-8"))
    entries, elsewhere = asked["sentences"], asked["elsewhere"]
    assert (len(entries), len(elsewhere)) == (60, 16)
    assert Counter([*(entry["sentence"] for entry in entries), *elsewhere]).most_common(1)[0][1] == 1
    photos = {path.name for path in (shipped("gallery") / "images").iterdir()}
    assert all(entry["photos"] and set(entry["photos"]) <= photos for entry in entries)
