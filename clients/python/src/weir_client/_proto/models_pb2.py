"""Classes of `weir/v1/models.proto`; the stub beside this file names them."""

from . import load

load("weir/v1/models.proto", globals())
