"""Classes of `weir/v1/generation.proto`; the stub beside this file names them."""

from . import load

load("weir/v1/generation.proto", globals())
