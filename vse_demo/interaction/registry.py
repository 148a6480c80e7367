"""Interactions by name."""

from collections.abc import Callable

from vse_demo.interaction.base import Interaction
from vse_demo.interaction.caan import CAAN
from vse_demo.interaction.cvse import CVSE
from vse_demo.interaction.dime import DIME
from vse_demo.interaction.fusion import Fusion
from vse_demo.interaction.imram import IMRAM
from vse_demo.interaction.pvse import PVSE
from vse_demo.interaction.scan import SCAN
from vse_demo.utils.checks import check_choice

INTERACTIONS: dict[str, Callable[..., Interaction]] = {
    "scan": lambda dim, **options: SCAN(**options),
    "caan": lambda dim, **options: CAAN(dim, **options),
    "imram": lambda dim, **options: IMRAM(dim, **options),
    "dime": lambda dim, **options: DIME(dim, **options),
    "pvse": lambda dim, **options: PVSE(dim, **options),
    "cvse": lambda dim, **options: CVSE(dim, **options),
    "fusion": lambda dim, **options: Fusion(dim, **options),
}


def build_interaction(name: str, dim: int, **options: object) -> Interaction:
    """Build any interaction by name.

    Args:
        name: One of `INTERACTIONS`.
        dim: D, of the features of both sides.
        options: Arguments of its class.

    Raises:
        ValueError: If there is no such interaction, or it has no such option.

    >>> build_interaction("scan", 8, direction="i2t").sharpness
    4.0
    """
    check_choice(name, list(INTERACTIONS), "interaction")
    try:
        return INTERACTIONS[name](dim, **options)
    except TypeError as error:
        raise ValueError(f"interaction {name} cannot use the options {options}: {error}") from error
