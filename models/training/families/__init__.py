"""Model families by the name they bear in a checkpoint's config.json. A new family is one file and one line here."""

from .decoder import Decoder
from .hourglass import Hourglass
from .lslm import Lslm
from .pyramidion import Pyramidion

FAMILIES = {"hourglass": Hourglass, "decoder": Decoder, "lslm": Lslm, "pyramidion": Pyramidion}


def build(config):
    """The untrained model that a checkpoint's config.json describes."""
    return FAMILIES[config["family"]](config)
