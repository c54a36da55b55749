"""Maps a family's name in a checkpoint's config.json to its class. A new family needs one file and one line here."""

from .decoder import Decoder
from .hourglass import Hourglass
from .lslm import Lslm
from .pyramidion import Pyramidion

FAMILIES = {"hourglass": Hourglass, "decoder": Decoder, "lslm": Lslm, "pyramidion": Pyramidion}


def build(config):
    """Returns the untrained model that a checkpoint's config.json describes."""
    family = config.get("family")
    if family not in FAMILIES:
        raise ValueError(f"unknown family {family!r}, expected one of {', '.join(FAMILIES)}")
    try:
        return FAMILIES[family](config)
    except KeyError as key:
        raise ValueError(f"{family}: configuration key {key} is missing or has an unknown value") from key
    except TypeError as error:
        raise ValueError(f"{family}: a configuration value has the wrong type: {error}") from error
