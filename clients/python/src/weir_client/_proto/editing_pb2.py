"""Classes of `weir/v1/editing.proto`; the stub beside this file names them."""

from . import load

load("weir/v1/editing.proto", globals())
