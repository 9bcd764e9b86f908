"""Log in and produce one record by aiokafka: `aiokafka_login.py BOOTSTRAP TOPIC CA MECHANISM USER`."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider


class Token(AbstractTokenProvider):  # type: ignore[misc]
    """Hands out the token of LOGIN_SECRET."""

    async def token(self) -> str:
        return os.environ["LOGIN_SECRET"]


async def main() -> None:
    """Print the record's offset, or the error; secrets are in LOGIN_*."""
    bootstrap, topic, authority, mechanism, user = sys.argv[1:]
    context = ssl.create_default_context(cafile=authority)
    options: dict[str, Any] = {"bootstrap_servers": bootstrap, "ssl_context": context, "request_timeout_ms": 30_000}
    if mechanism == "CERTIFICATE":
        context.load_cert_chain(os.environ["LOGIN_CERTIFICATE"], os.environ["LOGIN_KEY"])
        options["security_protocol"] = "SSL"
    else:
        options |= {"security_protocol": "SASL_SSL", "sasl_mechanism": mechanism}
        if mechanism == "OAUTHBEARER":
            options["sasl_oauth_token_provider"] = Token()
        else:
            options |= {"sasl_plain_username": user, "sasl_plain_password": os.environ["LOGIN_SECRET"]}
    producer = AIOKafkaProducer(**options)
    try:
        await producer.start()
        reported: dict[str, Any] = {"offset": (await producer.send_and_wait(topic, b"value")).offset}
    except Exception as error:  # noqa: BLE001 - whatever the library raises is its answer
        reported = {"error": repr(error)}
    finally:
        await producer.stop()
    print(json.dumps(reported))


asyncio.run(main())
