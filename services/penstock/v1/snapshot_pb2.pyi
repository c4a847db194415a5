from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class RunProof(_message.Message):
    __slots__ = ("key", "signature")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    signature: bytes
    def __init__(self, key: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class SnapshotProgress(_message.Message):
    __slots__ = ("segments", "total_segments", "bytes", "total_bytes")
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    segments: int
    total_segments: int
    bytes: int
    total_bytes: int
    def __init__(self, segments: _Optional[int] = ..., total_segments: _Optional[int] = ..., bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("name", "folder", "taken_unix_s", "segments", "absent", "damaged", "written_bytes", "shared_bytes", "seconds", "version", "automatic")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    TAKEN_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AUTOMATIC_FIELD_NUMBER: _ClassVar[int]
    name: str
    folder: str
    taken_unix_s: float
    segments: int
    absent: int
    damaged: int
    written_bytes: int
    shared_bytes: int
    seconds: float
    version: int
    automatic: bool
    def __init__(self, name: _Optional[str] = ..., folder: _Optional[str] = ..., taken_unix_s: _Optional[float] = ..., segments: _Optional[int] = ..., absent: _Optional[int] = ..., damaged: _Optional[int] = ..., written_bytes: _Optional[int] = ..., shared_bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., version: _Optional[int] = ..., automatic: bool = ...) -> None: ...
