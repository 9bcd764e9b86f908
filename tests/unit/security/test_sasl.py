"""SASL exchanges without sockets: what each side sends, and that refusals do not name the reason."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from scramp import ScramClient

from tidegate.security.errors import (
    IllegalSaslState,
    SaslAuthenticationFailed,
    UnacceptableCredential,
    UnsupportedSaslMechanism,
)
from tidegate.security.identity import Identity
from tidegate.security.oauth import CLOCK_SKEW_S, InvalidToken, TokenValidator
from tidegate.security.sasl import OAuthBearer, Plain, Scram
from tidegate.security.session import TOKEN_BYTES_MAX, MakeAuthentication, SaslSession
from tidegate.security.users import PASSWORD_LENGTH_MAX, SCRAM_MECHANISMS, Credential, User

PASSWORD = "alice's secret"


class OneUser:
    """Knows Alice of organisation acme."""

    def __init__(self) -> None:
        self.alice = User("alice", "acme", {name: Credential.of_password(name, PASSWORD) for name in SCRAM_MECHANISMS})

    async def get(self, name: str) -> User | None:
        return self.alice if name == "alice" else None

    async def salt_of_unknown_user(self, mechanism: str, name: str) -> bytes:
        return hashlib.sha256(f"a secret {mechanism} {name}".encode()).digest()


USERS: Any = OneUser()


def test_record_reads_back() -> None:
    assert User.parse("alice", USERS.alice.text()) == USERS.alice


@pytest.mark.parametrize("message", [b"\0alice\0alice's secret", b"alice\0alice\0alice's secret"])
async def test_plain_right_password(message: bytes) -> None:
    exchange = Plain(USERS)

    assert await exchange.step(message) == b""
    assert exchange.identity == Identity("User:alice", "acme")


@pytest.mark.parametrize(
    "message",
    [
        b"\0alice\0wrong",
        b"\0nobody\0alice's secret",
        b"\0alice\0",
        b"\0\0x",
        b"",
        b"\xff\0\0",
        b"bob\0alice\0alice's secret",
    ],
)
async def test_plain_refused(message: bytes) -> None:
    exchange = Plain(USERS)

    with pytest.raises(SaslAuthenticationFailed):
        await exchange.step(message)
    assert exchange.identity is None


@pytest.mark.parametrize("credentials", [SCRAM_MECHANISMS, ["SCRAM-SHA-512"]])
async def test_plain_unknown_user_takes_as_long_as_a_wrong_password(
    credentials: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    accepts = Credential.accepts

    def counting(self: Credential, mechanism: str, password: str) -> bool:
        checked.append(mechanism)
        return accepts(self, mechanism, password)

    users = OneUser()
    users.alice = User("alice", "acme", {name: users.alice.credentials[name] for name in credentials})
    monkeypatch.setattr(Credential, "accepts", counting)
    with pytest.raises(SaslAuthenticationFailed):
        await Plain(cast("Any", users)).step(b"\0alice\0wrong")
    of_wrong_password, checked[:] = list(checked), []
    with pytest.raises(SaslAuthenticationFailed):
        await Plain(cast("Any", users)).step(b"\0nobody\0wrong")

    assert checked == of_wrong_password == list(SCRAM_MECHANISMS)


def test_long_password_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its preparation takes seconds for a megabyte, which anybody may send to the admin HTTP."""
    prepared: list[int] = []
    monkeypatch.setattr("scramp.utils.saslprep", lambda text: prepared.append(len(text)) or text)

    assert not USERS.alice.accepts("x" * (PASSWORD_LENGTH_MAX + 1))
    with pytest.raises(UnacceptableCredential, match="1024 characters"):
        Credential.of_password("SCRAM-SHA-512", "x" * (PASSWORD_LENGTH_MAX + 1))
    assert prepared == []
    Credential.of_password("SCRAM-SHA-512", "x" * PASSWORD_LENGTH_MAX)
    assert prepared == [PASSWORD_LENGTH_MAX]


async def scram(mechanism: str, name: str, password: str) -> Scram:
    """A whole exchange with an independent client."""
    exchange, client = Scram(mechanism, USERS), ScramClient([mechanism], name, password)
    client.set_server_first((await exchange.step(client.get_client_first().encode())).decode())
    client.set_server_final((await exchange.step(client.get_client_final().encode())).decode())
    return exchange


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
async def test_scram_right_password(mechanism: str) -> None:
    assert (await scram(mechanism, "alice", PASSWORD)).identity == Identity("User:alice", "acme")


@pytest.mark.parametrize(("name", "password"), [("alice", "wrong"), ("nobody", PASSWORD)])
async def test_scram_refused_with_one_text(name: str, password: str) -> None:
    with pytest.raises(SaslAuthenticationFailed, match="invalid credentials with SASL mechanism SCRAM-SHA-256"):
        await scram("SCRAM-SHA-256", name, password)


async def test_scram_unknown_user_gets_the_same_salt_each_time() -> None:
    """Another salt each time would reveal that the user does not exist."""
    first = [await Scram("SCRAM-SHA-256", USERS).step(b"n,,n=nobody,r=abcdefgh") for _ in range(2)]

    salts = {message.split(b",s=")[1].split(b",")[0] for message in first}
    assert len(salts) == 1


@pytest.mark.parametrize(
    "message",
    [b"", b"n,,", b"n,,r=x", b"\xff", b"n,,n=alice,r=", b"p=tls-unique,,n=alice,r=abc", b"n,a=bob,n=alice,r=abc"],
)
async def test_scram_malformed_is_refused(message: bytes) -> None:
    with pytest.raises(SaslAuthenticationFailed):
        await Scram("SCRAM-SHA-512", USERS).step(message)


# -- OAUTHBEARER

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture
def validator(tmp_path: Path) -> TokenValidator:
    """Of one issuer with one key."""
    jwk = RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True) | {"kid": "k1", "use": "sig"}
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [jwk]}))
    settings: Any = SimpleNamespace(
        sasl_oauthbearer_jwks_endpoint_url=f"file://{file}",
        sasl_oauthbearer_expected_issuer="https://issuer",
        sasl_oauthbearer_expected_audience="kafka,other",
        sasl_oauthbearer_required_scope="kafka.use",
        sasl_oauthbearer_sub_claim_name="sub",
        sasl_oauthbearer_org_claim_name="org",
    )
    return TokenValidator(settings)


def token(key: Any = KEY, **changed: Any) -> str:
    """A good token with some claims changed; None removes one."""
    claims = {
        "sub": "alice", "iss": "https://issuer", "aud": "kafka", "exp": time.time() + 300, "scope": "a kafka.use",
        "org": "acme",
    } | changed  # fmt: skip
    present = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(present, key, algorithm="RS256", headers={"kid": "k1"})


async def test_token_gives_principal_org_and_end(validator: TokenValidator) -> None:
    end = int(time.time()) + 300

    assert await validator.identity(token(exp=end)) == Identity("User:alice", "acme", end + CLOCK_SKEW_S)


async def test_token_scopes_may_be_a_list_in_scp(validator: TokenValidator) -> None:
    assert (await validator.identity(token(scope=None, scp=["a", "kafka.use"]))).principal == "User:alice"


@pytest.mark.parametrize(
    "changed",
    [
        {"exp": 1_000_000_000},
        {"exp": None},
        {"nbf": 4_000_000_000},
        {"iss": "https://other"},
        {"aud": "elsewhere"},
        {"aud": None},
        {"scope": "a b"},
        {"scope": None},
        {"scope": "a", "scp": "kafka.use"},
        {"scope": 7},
        {"sub": None},
        {"sub": " "},
        {"org": "Acme/../x"},
        {"org": None},
        {"key": OTHER_KEY},
    ],
    ids=lambda changed: "-".join(f"{name}-{value}" for name, value in changed.items() if name != "key") or "other-key",
)
async def test_token_refused(validator: TokenValidator, changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidToken):
        await validator.identity(token(**changed))


@pytest.mark.parametrize(
    "text", ["", "a.b.c", "x", "a.\udcff.c", "\udcff", jwt.encode({"sub": "a"}, "secret" * 8, algorithm="HS256")]
)
async def test_token_malformed_or_symmetric_is_refused(validator: TokenValidator, text: str) -> None:
    with pytest.raises(InvalidToken):
        await validator.identity(text)


async def test_oauthbearer_exchange(validator: TokenValidator) -> None:
    exchange = OAuthBearer(validator)

    assert await exchange.step(b"n,,\x01auth=Bearer " + token().encode() + b"\x01\x01") == b""
    assert exchange.identity is not None
    assert exchange.identity.principal == "User:alice"


@pytest.mark.parametrize(("authzid", "name"), [("alice", "alice"), ("a=2Cb=3Dc", "a,b=c")])
async def test_oauthbearer_own_authorization_id(validator: TokenValidator, authzid: str, name: str) -> None:
    exchange = OAuthBearer(validator)

    message = f"n,a={authzid},\x01auth=Bearer {token(sub=name)}\x01\x01"
    assert await exchange.step(message.encode()) == b""
    assert exchange.identity is not None
    assert exchange.identity.principal == f"User:{name}"


@pytest.mark.parametrize("header", ["n,a=bob,", "n,a=,", "n,alice,", "n,a=alice=2,", "nobody,,", "p=tls-unique,,"])
async def test_oauthbearer_other_authorization_id_or_header_is_refused(validator: TokenValidator, header: str) -> None:
    exchange = OAuthBearer(validator)

    with pytest.raises(SaslAuthenticationFailed):
        await exchange.step(f"{header}\x01auth=Bearer {token()}\x01\x01".encode())
    assert exchange.identity is None


@pytest.mark.parametrize("pairs", ["auth=Basic x\x01auth=Bearer {}\x01", "auth=Bearer {}\x01auth=Bearer x\x01"])
async def test_oauthbearer_two_tokens_are_refused(validator: TokenValidator, pairs: str) -> None:
    with pytest.raises(SaslAuthenticationFailed, match="malformed"):
        await OAuthBearer(validator).step(f"n,,\x01{pairs.format(token())}\x01".encode())


async def test_oauthbearer_longest_malformed_message_takes_no_time(validator: TokenValidator) -> None:
    """Anybody may send it, and the other connections wait meanwhile."""
    message = b"n,,\x01" + b"auth=bearer x\x01" * (TOKEN_BYTES_MAX // 14 - 1)
    began_s = time.process_time()

    with pytest.raises(SaslAuthenticationFailed, match="malformed"):
        await OAuthBearer(validator).step(message)

    assert time.process_time() - began_s < 0.3  # it takes 5 ms; 1 s if every token is tried


async def test_oauthbearer_missing_scope_is_named(validator: TokenValidator) -> None:
    """RFC 7628, 3.2.2: the client can ask its issuer for that scope."""
    exchange = OAuthBearer(validator)

    answer = await exchange.step(f"n,,\x01auth=Bearer {token(scope='a b')}\x01\x01".encode())

    assert json.loads(answer) == {"status": "insufficient_scope", "scope": "kafka.use"}
    with pytest.raises(SaslAuthenticationFailed):
        await exchange.step(b"\x01")


async def test_oauthbearer_refused_token_is_answered_then_refused(validator: TokenValidator) -> None:
    exchange = OAuthBearer(validator)

    assert b"invalid_token" in await exchange.step(b"n,,\x01auth=Bearer a.b.c\x01\x01")
    with pytest.raises(SaslAuthenticationFailed):
        await exchange.step(b"\x01")


# -- the session of a connection


def session(max_reauth_ms: int = 0) -> tuple[SaslSession, list[Identity], list[str]]:
    """A session, who was accepted in it, and why somebody was refused."""
    accepted: list[Identity] = []
    refused: list[str] = []
    offered: dict[str, MakeAuthentication] = {
        "PLAIN": lambda: Plain(USERS),
        "SCRAM-SHA-256": lambda: Scram("SCRAM-SHA-256", USERS),
    }
    return SaslSession(offered, max_reauth_ms, accepted.append, refused.append), accepted, refused


async def test_session_authenticates_once_and_again_as_the_same_user(monkeypatch: pytest.MonkeyPatch) -> None:
    one, accepted, _ = session(max_reauth_ms=60_000)

    now_s = 100.0
    monkeypatch.setattr("tidegate.security.session.monotonic", lambda: now_s)
    for _ in range(2):
        now_s += 1
        one.handshake("PLAIN")
        assert await one.authenticate(b"\0alice\0alice's secret") == (b"", 60_000)
    assert accepted == [Identity("User:alice", "acme")] * 2
    assert not one.expired


async def test_session_reports_a_refused_token_that_is_not_acknowledged(validator: TokenValidator) -> None:
    """aiokafka closes the connection at the error challenge, where RFC 7628 has it send a byte."""
    refused: list[str] = []
    one = SaslSession({"OAUTHBEARER": lambda: OAuthBearer(validator)}, 0, lambda _: None, refused.append)
    one.handshake("OAUTHBEARER")
    answer, _ = await one.authenticate(b"n,,\x01auth=Bearer e30.e30.e30\x01\x01")
    assert (answer, refused) == (b'{"status":"invalid_token"}', [])

    one.end()
    one.end()
    assert refused == ["Authentication failed: the token was refused"]


@pytest.mark.parametrize("max_reauth_ms", [0, 60_000])
async def test_session_of_a_token_expired_within_the_clock_skew(validator: TokenValidator, max_reauth_ms: int) -> None:
    """The issuer's clock may be behind: the token is admitted, and its session lasts until the skew has passed too."""
    accepted: list[Identity] = []
    one = SaslSession({"OAUTHBEARER": lambda: OAuthBearer(validator)}, max_reauth_ms, accepted.append, pytest.fail)
    one.handshake("OAUTHBEARER")
    expired = token(exp=int(time.time()) - CLOCK_SKEW_S // 3)

    answer, lifetime_ms = await one.authenticate(b"n,,\x01auth=Bearer " + expired.encode() + b"\x01\x01")

    assert (answer, len(accepted)) == (b"", 1)
    left_ms = CLOCK_SKEW_S * 2 // 3 * 1000
    assert left_ms - 5_000 < lifetime_ms <= left_ms


async def test_session_ends_with_its_token_unless_the_client_authenticates_again(
    validator: TokenValidator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Kafka 4.4 does it where connections.max.reauth.ms is not set."""
    now_s = 100.0
    monkeypatch.setattr("tidegate.security.session.monotonic", lambda: now_s)
    one = SaslSession({"OAUTHBEARER": lambda: OAuthBearer(validator)}, 0, lambda _: None, pytest.fail)
    for _ in range(2):
        one.handshake("OAUTHBEARER")
        _, lifetime_ms = await one.authenticate(b"n,,\x01auth=Bearer " + token().encode() + b"\x01\x01")
        assert lifetime_ms > 0 and not one.expired
        now_s += lifetime_ms / 1000 + 1
        assert one.expired


async def test_session_refuses_a_token_expired_beyond_the_clock_skew(validator: TokenValidator) -> None:
    one = SaslSession({"OAUTHBEARER": lambda: OAuthBearer(validator)}, 60_000, pytest.fail, lambda _: None)
    one.handshake("OAUTHBEARER")
    expired = token(exp=int(time.time()) - CLOCK_SKEW_S - 1)

    answer = await one.authenticate(b"n,,\x01auth=Bearer " + expired.encode() + b"\x01\x01")

    assert answer == (b'{"status":"invalid_token"}', 0)


async def test_session_cannot_change_its_org(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the connection has open, such as fetch sessions, is of the first one."""
    one, accepted, refused = session(max_reauth_ms=60_000)
    now_s = 100.0
    monkeypatch.setattr("tidegate.security.session.monotonic", lambda: now_s)
    one.handshake("PLAIN")
    await one.authenticate(b"\0alice\0alice's secret")
    one.identity = Identity("User:alice", "umbrella")  # the record has named another one since
    now_s += 1
    one.handshake("PLAIN")
    with pytest.raises(SaslAuthenticationFailed, match="cannot change its organisation"):
        await one.authenticate(b"\0alice\0alice's secret")

    assert (len(accepted), len(refused)) == (1, 1)


async def test_session_refusal_ends_the_exchange() -> None:
    one, accepted, refused = session()
    one.handshake("PLAIN")

    with pytest.raises(SaslAuthenticationFailed):
        await one.authenticate(b"\0alice\0wrong")
    with pytest.raises(IllegalSaslState):
        await one.authenticate(b"\0alice\0alice's secret")
    assert (accepted, len(refused)) == ([], 1)


async def test_session_cannot_change_mechanism_or_use_an_unknown_one() -> None:
    one, _, _ = session()
    with pytest.raises(UnsupportedSaslMechanism):
        one.handshake("GSSAPI")
    one.handshake("PLAIN")
    await one.authenticate(b"\0alice\0alice's secret")

    with pytest.raises(IllegalSaslState):
        one.handshake("SCRAM-SHA-256")
