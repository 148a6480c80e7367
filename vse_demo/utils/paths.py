"""Where the package keeps what it ships and what it caches."""

import os
from pathlib import Path

from vse_demo.utils.files import FileError


def shipped(name: str) -> Path:
    """A folder of `assets/`."""
    return _beside_package(Path("assets") / name)


def lessons_folder() -> Path:
    """The folder of the notebooks, as students get them."""
    return _beside_package(Path("notebooks") / "student")


def _beside_package(name: Path) -> Path:
    """A folder that lies beside the package in a checkout and inside it in a wheel."""
    package = Path(__file__).parent.parent
    places = [package / name, package.parent / name]
    for place in places:
        if place.is_dir():
            return place
    raise FileError(f"the package came without its {name.name}: neither {places[0]} nor {places[1]} is there")


def default_cache() -> Path:
    """`$VSE_DEMO_CACHE`, or a folder in the user's cache directory."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("VSE_DEMO_CACHE") or Path(home) / "vse_demo")
