"""Checks KServe's kinds against the classes of its SDK, which KServe's maintainers generate from its OpenAPI document.

The SDK's own reader accepts unknown fields. Here an unknown field is an error, as it is for an API server with strict
validation. The classes are parsed as text: importing them would import the dependencies of all of KServe's servers. Kinds that
KServe takes from Kubernetes, such as containers, are checked by the schemas of kubernetes-validate.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

import jsonschema
import kubernetes_validate
from referencing import Registry, Resource

# The kinds of this folder's manifests.
KINDS = {
    ("serving.kserve.io/v1alpha1", "ServingRuntime"): "V1alpha1ServingRuntime",
    ("serving.kserve.io/v1beta1", "InferenceService"): "V1beta1InferenceService",
}
_SCALARS: Dict[str, Tuple[type, ...]] = {"str": (str,), "int": (int,), "bool": (bool,), "float": (float, int)}


@dataclass(frozen=True)
class Shape:
    """The fields of a class of the SDK."""

    #: The type of each field, by the field's name in a manifest.
    fields: Dict[str, str]
    required: Set[str]


def sdk() -> Optional[Path]:
    """Returns the folder of the SDK's classes, or None if it is not installed."""
    spec = importlib.util.find_spec("kserve")
    return Path(spec.origin).parent / "models" if spec is not None and spec.origin else None


class Checker:
    """Checks documents against the SDK's classes and one version of Kubernetes."""

    def __init__(self, models: Path, version: str) -> None:
        self._shapes = {name: shape for file in sorted(models.glob("v*.py")) for name, shape in _shapes(file)}
        strict = Path(kubernetes_validate.__file__).parent / f"kubernetes-json-schema/v{version}-local-strict"
        self._definitions = json.loads((strict / "_definitions.json").read_text())
        self._registry: Registry[Any] = Resource.from_contents(self._definitions) @ Registry()

    def errors(self, document: Dict[str, Any]) -> List[str]:
        """Returns the errors of a manifest of one of `KINDS`."""
        kind = KINDS[document["apiVersion"], document["kind"]]
        return list(self._check(document, kind, document["kind"]))

    def _check(self, value: Any, kind: str, path: str) -> Iterator[str]:
        if listed := re.fullmatch(r"list\[(.*)\]", kind):
            if not isinstance(value, list):
                yield f"{path}: {value!r} is not a list"
                return
            for index, item in enumerate(value):
                yield from self._check(item, listed[1], f"{path}[{index}]")
        elif mapped := re.fullmatch(r"dict\(str, (.*)\)", kind):
            for key, item in value.items():
                yield from self._check(item, mapped[1], f"{path}.{key}")
        elif kind in _SCALARS:
            # In Python, bool is a subclass of int.
            if not isinstance(value, _SCALARS[kind]) or (isinstance(value, bool) and kind != "bool"):
                yield f"{path}: {value!r} is not of type {kind}"
        elif kind in self._shapes:
            yield from self._check_shape(value, self._shapes[kind], path)
        else:
            yield from self._check_kubernetes(value, kind, path)

    def _check_shape(self, value: Any, shape: Shape, path: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{path}: {value!r} is not a mapping"
            return
        for missing in sorted(shape.required - value.keys()):
            yield f"{path}: {missing} is missing"
        for name, item in value.items():
            if name in shape.fields:
                yield from self._check(item, shape.fields[name], f"{path}.{name}")
            else:
                yield f"{path}: unknown field {name}"

    def _check_kubernetes(self, value: Any, kind: str, path: str) -> Iterator[str]:
        # V1Container is io.k8s.api.core.v1.Container; V1ObjectMeta is in another package.
        name = re.sub(r"^(K8sIoApi\w*?)?V1", "", kind)
        suffix = f".v1.{name}"
        matches = [key for key in self._definitions["$defs"] if key.endswith(suffix)]
        core = [key for key in matches if ".core." in key] or matches
        if not core:
            raise LookupError(f"{path}: no schema for {kind}")
        schema = {"$ref": f"{self._definitions['$id']}#/$defs/{core[0]}"}
        validator = jsonschema.Draft202012Validator(schema, registry=self._registry)
        for error in validator.iter_errors(value):
            yield f"{path}{error.json_path[1:]}: {error.message}"


def _shapes(file: Path) -> Iterator[Tuple[str, Shape]]:
    """Yields the classes of one of the SDK's files."""
    for node in ast.parse(file.read_text()).body:
        if not isinstance(node, ast.ClassDef):
            continue
        tables = {
            target.id: ast.literal_eval(statement.value)
            for statement in node.body
            if isinstance(statement, ast.Assign)
            for target in statement.targets
            if isinstance(target, ast.Name) and target.id in ("openapi_types", "attribute_map")
        }
        types, names = tables["openapi_types"], tables["attribute_map"]
        required = {names[field] for field in _required(node) if field in names}
        yield node.name, Shape({names[field]: kind for field, kind in types.items()}, required)


def _required(node: ast.ClassDef) -> Iterator[str]:
    """Yields the fields that the constructor sets unconditionally; it sets optional fields within an `if`."""
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            for line in method.body:
                if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Attribute):
                    yield line.targets[0].attr
