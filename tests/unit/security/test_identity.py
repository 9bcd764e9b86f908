"""Principals of certificates (KIP-371)."""

from __future__ import annotations

import pytest

from tidegate.security.identity import CertificateIdentities, Identity, distinguished_name
from tidegate.startup import CannotStart

SUBJECT = "CN=kafka-client,OU=Payments,O=Acme,C=DE"


def test_distinguished_name_is_as_java_writes_it() -> None:
    subject = (
        (("countryName", "DE"),),
        (("organizationName", "Acme, Inc."),),
        (("commonName", "kafka-client"),),
    )

    assert distinguished_name(subject) == r"CN=kafka-client,O=Acme\, Inc.,C=DE"


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("DEFAULT", f"User:{SUBJECT}"),
        ("", f"User:{SUBJECT}"),
        ("RULE:^CN=([^,]+),.*$/$1/", "User:kafka-client"),
        ("RULE:^CN=([^,]+),OU=([^,]+),.*$/$1@$2/U", "User:KAFKA-CLIENT@PAYMENTS"),
        ("RULE:^CN=([^,]+),OU=Other,.*$/$1/, DEFAULT", f"User:{SUBJECT}"),
        ("RULE:^UID=(.*)$/$1/L", None),
    ],
)
def test_principal_first_rule_that_matches_counts(rules: str, expected: str | None) -> None:
    assert CertificateIdentities(rules, "").identity(SUBJECT) == (expected and Identity(expected))


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("", "default"),
        ("RULE:^.*,OU=([^,]+),.*$/$1/L", "payments"),
        ("RULE:^.*,OU=Other,.*$/other/", "default"),
        ("RULE:^.*,OU=([^,]+),.*$/$1/", None),  # Payments: no name of an organisation
        ("DEFAULT", None),
    ],
)
def test_org_of_a_certificate(rules: str, expected: str | None) -> None:
    identity = CertificateIdentities("RULE:^CN=([^,]+),.*$/$1/", rules).identity(SUBJECT)

    assert identity == (expected and Identity("User:kafka-client", expected))


@pytest.mark.parametrize("rules", ["RULE:^CN=(/x/", "RULE:abc", "SOMETHING"])
def test_rules_malformed_are_refused_at_the_start(rules: str) -> None:
    with pytest.raises(CannotStart, match="SSL_PRINCIPAL_MAPPING_RULES"):
        CertificateIdentities(rules, "")
    with pytest.raises(CannotStart, match="SSL_ORG_MAPPING_RULES"):
        CertificateIdentities("", rules)
