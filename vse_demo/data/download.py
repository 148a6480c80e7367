"""Fetch Flickr30K from its Hugging Face copy, only when asked to."""

from pathlib import Path

from vse_demo.data.layouts import open_dataset
from vse_demo.utils.checks import check_choice
from vse_demo.utils.files import FileError

REPOSITORY = "nlphuji/flickr30k"
FILES = ("flickr_annotations_30k.csv", "flickr30k-images.zip")
DATASETS = ("flickr30k",)


def download(name: str, folder: Path) -> None:
    """Fetch a data set into `folder` and check that every image it names is there.

    A file appears when it is complete, and a complete file is not fetched again. `$HF_ENDPOINT`
    chooses another server with the same layout.

    Raises:
        FileError: If a file cannot be fetched; the same call goes on where it stopped.
        ValueError: If there is no such data set.
    """
    from huggingface_hub import hf_hub_download

    check_choice(name, DATASETS, "data set")
    for file in FILES:
        try:
            hf_hub_download(REPOSITORY, file, repo_type="dataset", local_dir=folder)
        except Exception as error:  # of the hub, of its HTTP library, or of the disk
            raise FileError(f"cannot fetch {file} of {REPOSITORY}: {error}; run the command again to go on") from error
    dataset = open_dataset(folder)
    for split in dataset.splits:
        dataset.split(split)
