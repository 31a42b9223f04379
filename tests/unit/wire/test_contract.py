from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import (
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
    FileDescriptor,
    MethodDescriptor,
)

from danube.wire._generated import (
    DanubeAdmin_pb2,
    DanubeAdmin_pb2_grpc,
    DanubeApi_pb2,
    DanubeApi_pb2_grpc,
    EdgeReplicator_pb2,
    EdgeReplicator_pb2_grpc,
    SchemaRegistry_pb2,
    SchemaRegistry_pb2_grpc,
)
from tests.unit.wire import contract

SCALARS = {
    FieldDescriptor.TYPE_UINT32: "u32",
    FieldDescriptor.TYPE_UINT64: "u64",
    FieldDescriptor.TYPE_INT32: "i32",
    FieldDescriptor.TYPE_STRING: "str",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_DOUBLE: "f64",
}


@dataclass(frozen=True)
class Package:
    name: str
    file: FileDescriptor
    messages: dict[str, str]
    enums: dict[str, str]
    methods: list[str]


PACKAGES = [
    Package(
        "danube",
        DanubeApi_pb2.DESCRIPTOR,
        contract.API_MESSAGES,
        contract.API_ENUMS,
        contract.API_METHODS,
    ),
    Package(
        "danube_schema",
        SchemaRegistry_pb2.DESCRIPTOR,
        contract.SCHEMA_MESSAGES,
        {},
        contract.SCHEMA_METHODS,
    ),
    Package(
        "danube_admin",
        DanubeAdmin_pb2.DESCRIPTOR,
        contract.ADMIN_MESSAGES,
        contract.ADMIN_ENUMS,
        contract.ADMIN_METHODS,
    ),
    Package(
        "danube.edge",
        EdgeReplicator_pb2.DESCRIPTOR,
        contract.EDGE_MESSAGES,
        contract.EDGE_ENUMS,
        contract.EDGE_METHODS,
    ),
]
each_package = pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)


def local(full_name: str, package: str) -> str:
    return full_name.removeprefix(f"{package}.")


def walk(messages: list[Descriptor]) -> Iterator[Descriptor]:
    for message in messages:
        if not message.GetOptions().map_entry:
            yield message
            yield from walk(list(message.nested_types))


def field_type(field: FieldDescriptor, package: str) -> str:
    if field.enum_type is not None:
        return local(field.enum_type.full_name, package)
    if field.message_type is None:
        return SCALARS[field.type]
    if field.message_type.GetOptions().map_entry:
        pair = field.message_type.fields_by_name
        key, value = (field_type(pair[name], package) for name in ("key", "value"))
        return f"map<{key},{value}>"
    return local(field.message_type.full_name, package)


def presence(message: Descriptor) -> set[str]:
    """Fields declared `optional`; has_presence alone is also true of every sub-message."""
    proto = descriptor_pb2.DescriptorProto()
    message.CopyToProto(proto)
    return {field.name for field in proto.field if field.proto3_optional}


def written(field: FieldDescriptor, package: str, optional: set[str]) -> str:
    text = field_type(field, package)
    if field.is_repeated and not text.startswith("map<"):
        text = f"[]{text}"
    if field.name in optional:
        text += "?"
    elif field.containing_oneof is not None:
        text += f"({field.containing_oneof.name})"
    return f"{field.name}={field.number}:{text}"


def fields(message: Descriptor, package: str) -> str:
    optional = presence(message)
    in_order = sorted(message.fields, key=lambda field: field.number)
    return " ".join(written(field, package, optional) for field in in_order)


def enums(file: FileDescriptor) -> Iterator[EnumDescriptor]:
    yield from file.enum_types_by_name.values()
    for message in walk(list(file.message_types_by_name.values())):
        yield from message.enum_types


def signature(method: MethodDescriptor, package: str) -> str:
    takes = "stream " if method.client_streaming else ""
    gives = "stream " if method.server_streaming else ""
    takes += local(method.input_type.full_name, package)
    gives += local(method.output_type.full_name, package)
    return f"{method.containing_service.name}/{method.name} {takes} -> {gives}"


@each_package
def test_every_message_has_the_fields_of_the_contract_and_no_others(package: Package) -> None:
    built = {
        local(message.full_name, package.name): fields(message, package.name)
        for message in walk(list(package.file.message_types_by_name.values()))
    }
    assert built == package.messages


@each_package
def test_every_enum_has_the_numbers_of_the_contract(package: Package) -> None:
    built = {
        local(enum.full_name, package.name): " ".join(f"{v.name}={v.number}" for v in enum.values)
        for enum in enums(package.file)
    }
    assert built == package.enums


@each_package
def test_every_service_has_the_methods_of_the_contract(package: Package) -> None:
    built = [
        signature(method, package.name)
        for service in package.file.services_by_name.values()
        for method in service.methods
    ]
    assert package.file.package == package.name
    assert sorted(built) == sorted(package.methods)


class RecordingChannel:
    """Notes the full path of every method a stub asks for."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def _note(self, path: str, *_args: object, **_kwargs: object) -> None:
        self.paths.append(path)

    unary_unary = unary_stream = stream_unary = stream_stream = _note


@pytest.mark.parametrize(
    ("module", "package"),
    [
        (DanubeApi_pb2_grpc, PACKAGES[0]),
        (SchemaRegistry_pb2_grpc, PACKAGES[1]),
        (DanubeAdmin_pb2_grpc, PACKAGES[2]),
        (EdgeReplicator_pb2_grpc, PACKAGES[3]),
    ],
    ids=[package.name for package in PACKAGES],
)
def test_stubs_call_the_full_method_paths_of_the_contract(module: object, package: Package) -> None:
    channel = RecordingChannel()
    for service in package.file.services_by_name:
        getattr(module, f"{service}Stub")(channel)
    expected = {f"/{package.name}.{line.split(' ')[0]}" for line in package.methods}
    assert set(channel.paths) == expected
