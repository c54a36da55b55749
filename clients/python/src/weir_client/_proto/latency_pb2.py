"""Classes of `weir/v1/latency.proto`; the stub beside this file names them."""

from . import load

load("weir/v1/latency.proto", globals())
