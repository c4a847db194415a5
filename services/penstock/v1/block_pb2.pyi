from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA_TYPE_UNSPECIFIED: _ClassVar[DataType]
    DATA_TYPE_BOOL: _ClassVar[DataType]
    DATA_TYPE_UINT8: _ClassVar[DataType]
    DATA_TYPE_INT8: _ClassVar[DataType]
    DATA_TYPE_INT32: _ClassVar[DataType]
    DATA_TYPE_INT64: _ClassVar[DataType]
    DATA_TYPE_FLOAT16: _ClassVar[DataType]
    DATA_TYPE_FLOAT32: _ClassVar[DataType]
    DATA_TYPE_FLOAT64: _ClassVar[DataType]

class Codec(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CODEC_RAW: _ClassVar[Codec]
    CODEC_LZ4: _ClassVar[Codec]

class Extent(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXTENT_UNSPECIFIED: _ClassVar[Extent]
    EXTENT_STEP: _ClassVar[Extent]
    EXTENT_STEP_AND_NEXT: _ClassVar[Extent]
    EXTENT_SEGMENT: _ClassVar[Extent]
DATA_TYPE_UNSPECIFIED: DataType
DATA_TYPE_BOOL: DataType
DATA_TYPE_UINT8: DataType
DATA_TYPE_INT8: DataType
DATA_TYPE_INT32: DataType
DATA_TYPE_INT64: DataType
DATA_TYPE_FLOAT16: DataType
DATA_TYPE_FLOAT32: DataType
DATA_TYPE_FLOAT64: DataType
CODEC_RAW: Codec
CODEC_LZ4: Codec
EXTENT_UNSPECIFIED: Extent
EXTENT_STEP: Extent
EXTENT_STEP_AND_NEXT: Extent
EXTENT_SEGMENT: Extent

class Column(_message.Message):
    __slots__ = ("name", "data_type", "shape", "extent", "lead")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    EXTENT_FIELD_NUMBER: _ClassVar[int]
    LEAD_FIELD_NUMBER: _ClassVar[int]
    name: str
    data_type: DataType
    shape: _containers.RepeatedScalarFieldContainer[int]
    extent: Extent
    lead: int
    def __init__(self, name: _Optional[str] = ..., data_type: _Optional[_Union[DataType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., extent: _Optional[_Union[Extent, str]] = ..., lead: _Optional[int] = ...) -> None: ...

class Schema(_message.Message):
    __slots__ = ("unroll_length", "columns")
    UNROLL_LENGTH_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    unroll_length: int
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    def __init__(self, unroll_length: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ...) -> None: ...

class Block(_message.Message):
    __slots__ = ("schema_hash", "segments", "column_offsets", "total_bytes", "part", "parts", "part_offset", "forms", "payload")
    SCHEMA_HASH_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    COLUMN_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    PART_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FORMS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    schema_hash: int
    segments: int
    column_offsets: _containers.RepeatedScalarFieldContainer[int]
    total_bytes: int
    part: int
    parts: int
    part_offset: int
    forms: bytes
    payload: bytes
    def __init__(self, schema_hash: _Optional[int] = ..., segments: _Optional[int] = ..., column_offsets: _Optional[_Iterable[int]] = ..., total_bytes: _Optional[int] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., part_offset: _Optional[int] = ..., forms: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...
