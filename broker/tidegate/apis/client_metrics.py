"""GetTelemetrySubscriptions and PushTelemetry, and the configs of client metrics (KIP-714)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

from kio.schema.errors import ErrorCode

from tidegate.apis.call import Call
from tidegate.apis.registry import api
from tidegate.cluster.resource_configs import CLIENT_METRICS, Configs, ResourceConfigs
from tidegate.errors import CorruptMessage, InvalidRecord, InvalidRequest
from tidegate.log.offload import DECODED
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME, at_top
from tidegate.protocol.versions import Fields
from tidegate.records.batch import Codec
from tidegate.records.compression import RecordsTooLarge, decompress
from tidegate.security.identity import DEFAULT_ORG
from tidegate.telemetry import client_metrics, metrics_payload
from tidegate.telemetry.client_metrics import Subscription
from tidegate.telemetry.metrics_payload import Sums, TelemetryTooLarge
from tidegate.topics.config_keys import ConfigType
from tidegate.topics.configs import Change, Described, Source, Synonym

if TYPE_CHECKING:
    from kio.schema.get_telemetry_subscriptions.v0.request import GetTelemetrySubscriptionsRequest
    from kio.schema.push_telemetry.v0.request import PushTelemetryRequest

_CODECS: Final = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)
"""In the order of preference; none is accepted too."""
_DEFAULTS: Final = {
    client_metrics.INTERVAL: (ConfigType.INT, str(client_metrics.INTERVAL_MS_DEFAULT), "Time between two pushes, ms."),
    client_metrics.MATCH: (ConfigType.LIST, "", "Which clients: ATTRIBUTE=PATTERN, all of them; empty: every client."),
    client_metrics.METRICS: (ConfigType.LIST, "", "Prefixes of the metrics to push; *: all; empty: none."),
}


@api(
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    first=0,
    last=0,
    away=ErrorCode.request_timed_out,
    safe_late=True,
    error=at_top(
        client_instance_id=None,
        subscription_id=0,
        accepted_compression_types=(),
        push_interval=NO_TIME,
        telemetry_max_bytes=0,
        delta_temporality=False,
        requested_metrics=(),
    ),
)
async def get_telemetry_subscriptions(call: Call, request: GetTelemetrySubscriptionsRequest) -> Any:
    """What the client is to push; its instance id is made here if it has none. Nothing where pushes are refused."""
    instance_id = request.client_instance_id or uuid4()
    subscription = _subscription(call, instance_id)
    return Fields(
        throttle_time=NO_TIME,
        error_code=ErrorCode.none,
        client_instance_id=instance_id,
        subscription_id=subscription.id,
        accepted_compression_types=tuple(codec.value for codec in _CODECS),
        push_interval=timedelta(milliseconds=subscription.interval_ms),
        telemetry_max_bytes=metrics_payload.PUSHED_BYTES_MAX,
        delta_temporality=True,
        requested_metrics=subscription.metrics,
    )


@api(ApiKey.PUSH_TELEMETRY, first=0, last=0, away=ErrorCode.request_timed_out, safe_late=True, error=at_top())
async def push_telemetry(call: Call, request: PushTelemetryRequest) -> Any:
    """Add a client's values to this broker's metrics."""
    code = ErrorCode.none
    if not request.client_instance_id:
        code = ErrorCode.invalid_request
    elif request.subscription_id != _subscription(call, request.client_instance_id).id:
        code = ErrorCode.unknown_subscription_id
    elif int(request.compression_type) not in (Codec.NONE, *_CODECS):
        code = ErrorCode.unsupported_compression_type
    elif len(request.metrics) > metrics_payload.PUSHED_BYTES_MAX:
        code = ErrorCode.telemetry_too_large
    elif call.context.settings.client_metrics_enabled:
        code = await _push(call, request)
    return Fields(throttle_time=NO_TIME, error_code=code)


async def _push(call: Call, request: PushTelemetryRequest) -> ErrorCode:
    try:
        pushed = await DECODED.run(_decoded, request.compression_type, request.metrics)
    except (RecordsTooLarge, TelemetryTooLarge):
        return ErrorCode.telemetry_too_large
    except (CorruptMessage, InvalidRecord):
        return ErrorCode.invalid_record
    call.context.client_metrics.add(pushed, call.client.software.name)
    return ErrorCode.none


def _decoded(codec: int, metrics: bytes) -> Sums[str]:
    return metrics_payload.decode(decompress(codec, metrics, metrics_payload.DECODED_BYTES_MAX))


def _subscription(call: Call, instance_id: UUID) -> Subscription:
    configs, client = call.context.resource_configs, call.client
    attributes = {
        "client_instance_id": str(instance_id),
        "client_id": call.client_id or "",
        "client_software_name": client.software_name,
        "client_software_version": client.software_version,
        "client_source_address": client.host,
        "client_source_port": str(client.port),
    }
    if configs is None or not call.context.settings.client_metrics_enabled:
        return Subscription(0, (), client_metrics.INTERVAL_MS_DEFAULT)
    subscriptions = (configs.of(CLIENT_METRICS, name) for name in configs.names(CLIENT_METRICS))
    return client_metrics.subscription_of(subscriptions, attributes)


# -- configs


def describe(call: Call, name: str) -> list[Described]:
    """The configs of a subscription; of one that does not exist, the defaults. Raises InvalidRequest.

    Subscriptions name clients of all organisations, so only the default one sees them.
    """
    stored = _stored(call, name).of(CLIENT_METRICS, name) if call.org == DEFAULT_ORG else {}
    described = []
    for config, (kind, default, doc) in _DEFAULTS.items():
        synonyms: tuple[Synonym, ...] = (Synonym(config, default, Source.DEFAULT),)
        if config in stored:
            synonyms = (Synonym(config, stored[config], Source.CLIENT_METRICS), *synonyms)
        described.append(Described(config, kind, synonyms[0].value, synonyms[0].source, doc, synonyms))
    return described


async def alter(call: Call, name: str, changes: Sequence[Change], validate_only: bool) -> None:
    """Change the configs of a subscription. Raises InvalidRequest, InvalidConfig, PolicyViolation, StoreUnavailable."""

    def plan(before: Configs) -> tuple[Configs, Sequence[str]]:
        return client_metrics.changes_of(before, changes)

    await _stored(call, name).alter(CLIENT_METRICS, name, plan, validate_only)


def _stored(call: Call, name: str) -> ResourceConfigs:
    if not name:
        raise InvalidRequest("the client metrics have no name")
    if call.context.resource_configs is None:
        raise InvalidRequest("this broker has no client metrics")
    return call.context.resource_configs
