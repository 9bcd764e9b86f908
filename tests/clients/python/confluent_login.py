"""Log in and produce one record by librdkafka: `confluent_login.py BOOTSTRAP TOPIC CA MECHANISM USER`."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from confluent_kafka import Producer

WAIT_S = 30


def main() -> None:
    """Print the record's offset, or the error; secrets are in LOGIN_*."""
    bootstrap, topic, authority, mechanism, user = sys.argv[1:]
    secret = os.environ.get("LOGIN_SECRET", "")
    options: dict[str, Any] = {"bootstrap.servers": bootstrap, "ssl.ca.location": authority, "log_level": 0}
    errors: list[str] = []
    options["error_cb"] = lambda error: errors.append(error.str())
    options["message.timeout.ms"] = 10_000
    if mechanism == "CERTIFICATE":
        options |= {
            "security.protocol": "SSL",
            "ssl.certificate.location": os.environ["LOGIN_CERTIFICATE"],
            "ssl.key.location": os.environ["LOGIN_KEY"],
        }
    else:
        options |= {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism}
        if mechanism == "OAUTHBEARER":
            options["oauth_cb"] = lambda _: (secret, time.time() + 300)
        else:
            options |= {"sasl.username": user, "sasl.password": secret}
    reported: dict[str, Any] = {"error": "no answer"}

    def on_delivery(error: Any, message: Any) -> None:
        nonlocal reported
        reported = {"error": f"{error.str()}; {errors}"} if error else {"offset": message.offset()}

    producer = Producer(options)
    producer.poll(0.1)
    producer.produce(topic, b"value", on_delivery=on_delivery)
    producer.flush(WAIT_S)
    print(json.dumps(reported))


main()
