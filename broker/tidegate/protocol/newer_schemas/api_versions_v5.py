"""ApiVersions v5: the client names the broker that it means to reach (KIP-1242)."""

from dataclasses import dataclass, field
from typing import ClassVar

from kio.schema.api_versions.v4 import request, response
from kio.static.primitive import i16, i32


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest(request.ApiVersionsRequest):
    """v4 with the identity of the broker; both fields or none."""

    __version__: ClassVar[i16] = i16(5)
    cluster_id: str | None = field(metadata={"kafka_type": "string"}, default=None)
    node_id: i32 = field(metadata={"kafka_type": "int32"}, default=i32(-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsResponse(response.ApiVersionsResponse):
    """As v4."""

    __version__: ClassVar[i16] = i16(5)
