"""Checks KServe's kinds by the classes of its SDK, which its maintainers generate from its OpenAPI document.

The SDK's own reader takes what it does not know; here an unknown field is an error, as it is to an API server that validates
strictly. The classes are read as text: importing them means importing what all of KServe's servers need. What KServe takes over
from Kubernetes, such as containers, is checked by the schemas that kubernetes-validate brings.
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
    """A class of the SDK."""

    #: By the name in a manifest.
    fields: Dict[str, str]
    required: Set[str]


def sdk() -> Optional[Path]:
    """Where the SDK's classes are, if it is installed."""
    found = importlib.util.find_spec("kserve")
    return Path(found.origin).parent / "models" if found is not None and found.origin else None


class Checker:
    """Knows the SDK's classes, and a version of Kubernetes."""

    def __init__(self, models: Path, version: str) -> None:
        self._shapes = {name: shape for file in sorted(models.glob("v*.py")) for name, shape in _shapes(file)}
        strict = Path(kubernetes_validate.__file__).parent / f"kubernetes-json-schema/v{version}-local-strict"
        self._definitions = json.loads((strict / "_definitions.json").read_text())
        self._registry: Registry[Any] = Resource.from_contents(self._definitions) @ Registry()

    def errors(self, document: Dict[str, Any]) -> List[str]:
        """What is wrong with a manifest of one of `KINDS`."""
        kind = KINDS[document["apiVersion"], document["kind"]]
        return list(self._check(document, kind, document["kind"]))

    def _check(self, value: Any, kind: str, at: str) -> Iterator[str]:
        if listed := re.fullmatch(r"list\[(.*)\]", kind):
            if not isinstance(value, list):
                yield f"{at}: {value!r} is no list"
                return
            for number, one in enumerate(value):
                yield from self._check(one, listed[1], f"{at}[{number}]")
        elif mapped := re.fullmatch(r"dict\(str, (.*)\)", kind):
            for key, one in value.items():
                yield from self._check(one, mapped[1], f"{at}.{key}")
        elif kind in _SCALARS:
            # to Python, True is a number
            if not isinstance(value, _SCALARS[kind]) or (isinstance(value, bool) and kind != "bool"):
                yield f"{at}: {value!r} is no {kind}"
        elif kind in self._shapes:
            yield from self._check_shape(value, self._shapes[kind], at)
        else:
            yield from self._check_kubernetes(value, kind, at)

    def _check_shape(self, value: Any, shape: Shape, at: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{at}: {value!r} is no mapping"
            return
        for missing in sorted(shape.required - value.keys()):
            yield f"{at}: {missing} is missing"
        for name, one in value.items():
            if name in shape.fields:
                yield from self._check(one, shape.fields[name], f"{at}.{name}")
            else:
                yield f"{at}: {name} is no field"

    def _check_kubernetes(self, value: Any, kind: str, at: str) -> Iterator[str]:
        # V1Container is io.k8s.api.core.v1.Container, V1ObjectMeta lies elsewhere.
        name = re.sub(r"^(K8sIoApi\w*?)?V1", "", kind)
        ends = f".v1.{name}"
        found = [key for key in self._definitions["$defs"] if key.endswith(ends)]
        core = [key for key in found if ".core." in key] or found
        if not core:
            raise LookupError(f"{at}: no schema of {kind}")
        schema = {"$ref": f"{self._definitions['$id']}#/$defs/{core[0]}"}
        validator = jsonschema.Draft202012Validator(schema, registry=self._registry)
        for error in validator.iter_errors(value):
            yield f"{at}{error.json_path[1:]}: {error.message}"


def _shapes(file: Path) -> Iterator[Tuple[str, Shape]]:
    """The classes of one of the SDK's files."""
    for node in ast.parse(file.read_text()).body:
        if not isinstance(node, ast.ClassDef):
            continue
        tables = {
            target.id: ast.literal_eval(one.value)
            for one in node.body
            if isinstance(one, ast.Assign)
            for target in one.targets
            if isinstance(target, ast.Name) and target.id in ("openapi_types", "attribute_map")
        }
        types, names = tables["openapi_types"], tables["attribute_map"]
        required = {names[field] for field in _required(node) if field in names}
        yield node.name, Shape({names[field]: kind for field, kind in types.items()}, required)


def _required(node: ast.ClassDef) -> Iterator[str]:
    """What the constructor sets in any case; what may be left out it sets within an `if`."""
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            for line in method.body:
                if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Attribute):
                    yield line.targets[0].attr
