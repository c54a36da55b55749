"""Model families by the name they bear in a checkpoint's config.json. A new family is one file and one line here."""

from .hourglass import Hourglass

FAMILIES = {"hourglass": Hourglass}


def build(config):
    """The untrained model that a checkpoint's config.json describes."""
    return FAMILIES[config["family"]](config)
