"""An OpenID Connect provider on this machine, which says of whoever comes that it is the person that it was told."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field
from http.server import BaseHTTPRequestHandler
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs
from urllib.parse import urlencode
from urllib.parse import urlsplit

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT = "megatune"


@dataclass
class Provider:
    """Where it is, and what it says of the next who comes."""

    address: str
    claims: dict[str, Any] = field(default_factory=dict)
    nonce: str = ""


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(value: int) -> str:
    return _text(value.to_bytes((value.bit_length() + 7) // 8, "big"))


@contextmanager
def provider() -> Iterator[Provider]:
    """A provider that answers until the end of the block."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = key.public_key().public_numbers()
    found = Provider("")

    def token() -> str:
        now = int(time.time())
        claims = {"iss": found.address, "aud": CLIENT, "sub": "1", "iat": now, "exp": now + 600, "nonce": found.nonce}
        parts = [{"alg": "RS256", "kid": "1", "typ": "JWT"}, claims | found.claims]
        signed = ".".join(_text(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{_text(key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            del format, args

        def answer(self, value: dict[str, Any]) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            where = urlsplit(self.path)
            if where.path == "/authorize":
                asked = {name: values[0] for name, values in parse_qs(where.query).items()}
                found.nonce = asked.get("nonce", "")
                back = urlencode({"code": "one", "state": asked["state"]})
                self.send_response(302)
                self.send_header("Location", f"{asked['redirect_uri']}?{back}")
                self.end_headers()
            elif where.path == "/keys":
                self.answer(
                    {
                        "keys": [
                            {
                                "kty": "RSA",
                                "use": "sig",
                                "alg": "RS256",
                                "kid": "1",
                                "n": _number(public.n),
                                "e": _number(public.e),
                            }
                        ]
                    }
                )
            else:
                self.answer(
                    {
                        "issuer": found.address,
                        "authorization_endpoint": f"{found.address}/authorize",
                        "token_endpoint": f"{found.address}/token",
                        "jwks_uri": f"{found.address}/keys",
                        "response_types_supported": ["code"],
                        "subject_types_supported": ["public"],
                        "id_token_signing_alg_values_supported": ["RS256"],
                    }
                )

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.answer({"access_token": "a", "token_type": "Bearer", "expires_in": 600, "id_token": token()})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
