"""Log in and produce one record by kafka-python: `kafka_python_login.py BOOTSTRAP TOPIC CA MECHANISM USER`."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import kafka
from kafka.net.sasl.oauth import AbstractTokenProvider

WAIT_S = 20


class Token(AbstractTokenProvider):  # type: ignore[misc]
    """Hands out the token of LOGIN_SECRET."""

    def token(self) -> str:
        return os.environ["LOGIN_SECRET"]


def main() -> None:
    """Print the record's offset, or the error; secrets are in LOGIN_*."""
    bootstrap, topic, authority, mechanism, user = sys.argv[1:]
    options: dict[str, Any] = {"bootstrap_servers": bootstrap, "ssl_cafile": authority, "max_block_ms": 15_000}
    if mechanism == "CERTIFICATE":
        own = {"ssl_certfile": os.environ["LOGIN_CERTIFICATE"], "ssl_keyfile": os.environ["LOGIN_KEY"]}
        options |= {"security_protocol": "SSL", **own}
    else:
        options |= {"security_protocol": "SASL_SSL", "sasl_mechanism": mechanism}
        if mechanism == "OAUTHBEARER":
            options["sasl_oauth_token_provider"] = Token()
        else:
            options |= {"sasl_plain_username": user, "sasl_plain_password": os.environ["LOGIN_SECRET"]}
    try:
        producer = kafka.KafkaProducer(**options)
        reported: dict[str, Any] = {"offset": producer.send(topic, b"value").get(WAIT_S).offset}
    except Exception as error:  # noqa: BLE001 - whatever the library raises is its answer
        reported = {"error": repr(error)}
    print(json.dumps(reported), flush=True)
    os._exit(0)  # its thread would continue trying


main()
