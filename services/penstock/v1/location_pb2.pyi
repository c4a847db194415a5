from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Location(_message.Message):
    __slots__ = ("node", "job", "metrics_address")
    NODE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    METRICS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node: str
    job: str
    metrics_address: str
    def __init__(self, node: _Optional[str] = ..., job: _Optional[str] = ..., metrics_address: _Optional[str] = ...) -> None: ...
