"""Classes of `weir/v1/codec.proto`; the stub beside this file names them."""

from . import load

load("weir/v1/codec.proto", globals())
