"""Checks that the generated files match the `.proto` files, and that the dataclasses have the fields of their messages."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

import weir_client
from weir_client._proto import codec_pb2, editing_pb2, generation_pb2, latency_pb2, models_pb2, summarization_pb2
from weir_client.generate import _SUBMESSAGES, GenerateOptions
from weir_client.score import ScoreOptions
from weir_client.segment import SegmentOptions

HERE = Path(__file__).resolve().parent.parent
CHECKED_IN = HERE / "src/weir_client/_proto"


def test_checked_in_files_match_protoc(tmp_path: Path) -> None:
    generate = pytest.importorskip("generate", reason="grpcio-tools is not installed")
    generate.generate(tmp_path)
    generated, checked_in = (
        descriptor_pb2.FileDescriptorSet.FromString((folder / "weir.binpb").read_bytes())
        for folder in (tmp_path, CHECKED_IN)
    )
    assert generated == checked_in, "proto/ has changed: run tools/generate.py"
    # Another version of protoc may write a different stub for the same messages.
    pinned = re.findall(r'"grpcio-tools==([\d.]+)"', (HERE / "pyproject.toml").read_text())
    if importlib.metadata.version("grpcio-tools") in pinned:
        for stub in sorted(tmp_path.glob("*.pyi")):
            assert stub.read_text() == (CHECKED_IN / stub.name).read_text(), stub.name


@pytest.mark.parametrize(
    ("dataclass", "message"),
    [
        (weir_client.Alternative, generation_pb2.Alternative),
        (weir_client.Character, generation_pb2.Character),
        (weir_client.Usage, generation_pb2.Usage),
        (weir_client.Timing, generation_pb2.Timing),
        (weir_client.Started, generation_pb2.Started),
        (weir_client.Piece, generation_pb2.Piece),
        (weir_client.Finished, generation_pb2.Finished),
        (weir_client.ScoreSummary, generation_pb2.ScoreSummary),
        (weir_client.Segment, generation_pb2.Segment),
        (weir_client.Segmentation, generation_pb2.SegmentResponse),
        (weir_client.Vocabulary, models_pb2.Vocabulary),
        (weir_client.Limits, models_pb2.Limits),
        (weir_client.Documents, models_pb2.Documents),
        (weir_client.PoolingStep, models_pb2.PoolingStep),
        (weir_client.Model, models_pb2.Model),
        (weir_client.DocumentApplied, editing_pb2.DocumentApplied),
        (weir_client.CompletionItem, editing_pb2.CompletionItem),
        (weir_client.DocumentCompletions, editing_pb2.DocumentCompletions),
        (weir_client.CodecSummary, codec_pb2.CodecSummary),
        (weir_client.SummaryStarted, summarization_pb2.SummaryStarted),
        (weir_client.Progress, summarization_pb2.Progress),
        (weir_client.Selected, summarization_pb2.Selected),
        (weir_client.KeptToken, summarization_pb2.KeptToken),
        (weir_client.Span, summarization_pb2.Span),
        (weir_client.SummaryPiece, summarization_pb2.SummaryPiece),
        (weir_client.SummaryFinished, summarization_pb2.SummaryFinished),
        (weir_client.Hypothesis, summarization_pb2.Hypothesis),
        (weir_client.SummaryUsage, summarization_pb2.SummaryUsage),
        (weir_client.SummaryTiming, summarization_pb2.SummaryTiming),
        (weir_client.EncoderLayer, summarization_pb2.EncoderLayer),
        (weir_client.LevelUsage, generation_pb2.LevelUsage),
        (weir_client.BoundaryLevel, generation_pb2.BoundaryLevel),
        (weir_client.CacheEffect, latency_pb2.CacheEffect),
        (weir_client.CalibratedStep, latency_pb2.CalibratedStep),
        (weir_client.Calibration, latency_pb2.Calibration),
        (weir_client.EncoderLayerReport, latency_pb2.EncoderLayerReport),
        (weir_client.EstimatedGain, latency_pb2.EstimatedGain),
        (weir_client.LatencyBar, latency_pb2.LatencyBar),
        (weir_client.LatencyHistogram, latency_pb2.LatencyHistogram),
        (weir_client.MeasuredSummaries, latency_pb2.MeasuredSummaries),
        (weir_client.KeptShares, latency_pb2.KeptShares),
        (weir_client.TwinGain, latency_pb2.TwinGain),
        (weir_client.MedianGain, latency_pb2.MedianGain),
        (weir_client.MeasuredTexts, latency_pb2.MeasuredTexts),
        (weir_client.ModelReport, latency_pb2.ModelReport),
    ],
)
def test_dataclass_has_the_fields_of_its_message(dataclass: Any, message: Any) -> None:
    fields = {field.name: str(field.type) for field in dataclasses.fields(dataclass)}
    assert set(fields) == set(message.DESCRIPTOR.fields_by_name)
    for name, kind in fields.items():
        field = message.DESCRIPTOR.fields_by_name[name]
        # A scalar is Optional in both or in neither. A submessage always has presence, so it is not compared.
        if field.message_type is None:
            assert kind.startswith("Optional") == field.has_presence, name


def test_finish_reasons_match_the_server() -> None:
    server = {name.replace("FINISH_REASON_", ""): number for name, number in generation_pb2.FinishReason.items()}
    assert {reason.name: reason.value for reason in weir_client.FinishReason} == server
    assert weir_client.FinishReason(77) is weir_client.FinishReason.UNSPECIFIED


def test_summary_finish_reasons_match_the_server() -> None:
    items = summarization_pb2.SummaryFinishReason.items()
    server = {name.replace("SUMMARY_FINISH_REASON_", ""): number for name, number in items}
    assert {reason.name: reason.value for reason in weir_client.SummaryFinishReason} == server


def test_every_field_of_a_summary_is_an_option() -> None:
    options = summarization_pb2.SummarizeOptions.DESCRIPTOR
    sampling = generation_pb2.Sampling.DESCRIPTOR
    # The server refuses it for summaries.
    form = set(generation_pb2.Constraint.DESCRIPTOR.fields_by_name) - {"end_when_complete"}
    names = (set(options.fields_by_name) - {"sampling", "constraint"}) | form | set(sampling.fields_by_name)
    assert set(weir_client.SummarizeOptions.__annotations__) - {"timeout", "affinity", "metadata"} == names


def test_report_windows_match_the_server() -> None:
    server = {name.replace("REPORT_WINDOW_", ""): number for name, number in latency_pb2.ReportWindow.items()}
    assert {window.name: window.value for window in weir_client.ReportWindow} == server
    assert weir_client.ReportWindow(77) is weir_client.ReportWindow.UNSPECIFIED


def test_every_field_of_a_request_is_an_option() -> None:
    request = generation_pb2.GenerateRequest.DESCRIPTOR
    scalars = {name for name, field in request.fields_by_name.items() if field.message_type is None} - {"prompt"}
    parts = {name: request.fields_by_name[name].message_type for name in set(_SUBMESSAGES.values()) - {""}}
    nested = {name for part in parts.values() if part is not None for name in part.fields_by_name}
    call = {"timeout", "affinity", "metadata"}
    assert set(GenerateOptions.__annotations__) - call == scalars | nested | {"resume"}
    assert set(_SUBMESSAGES) == (scalars | nested) - {"logit_bias"}
    for options, descriptor in [
        (ScoreOptions, generation_pb2.ScoreRequest.DESCRIPTOR),
        (SegmentOptions, generation_pb2.SegmentRequest.DESCRIPTOR),
    ]:
        assert set(options.__annotations__) - call == set(descriptor.fields_by_name) - {"text"}
