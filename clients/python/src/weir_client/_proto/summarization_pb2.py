"""Classes of `weir/v1/summarization.proto`; the stub beside this file names them."""

from . import load

load("weir/v1/summarization.proto", globals())
