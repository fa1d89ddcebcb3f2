"""What stands before a SuperLink: nginx, which ends TLS and lets through what SuperNodes need and nothing else.

Flower 1.41 serves its Fleet API (for SuperNodes), its Control API (`flwr run`, `flwr supernode register`) and its
Runtime API on one port, and has no accounts: who reaches the port can run code there. So the SuperLink listens on
loopback, and the world reaches the Fleet API alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from polyfed.core.errors import BadInput, shown

# the routes of flwr/superlink/routers/fleet/router.py, but for register-node and unregister-node: the operator's
ROUTES = (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run", "get-fab",
    "pull-object", "push-object", "confirm-message-received",
)  # fmt: skip
SUPERLINK = 8000  # its port, on loopback
NEAR = 9443  # the port of a node's own proxy, on loopback

NGINX = """\
# Made by `polyfed flower init`. Start: nginx -p "$PWD/proxy" -c nginx.conf     Stop: the same with -s stop
# Ends TLS at {address} and forwards to the SuperLink on loopback the calls that SuperNodes make, and no other.
worker_processes auto;
pid nginx.pid;
error_log error.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log access.log;
    client_body_temp_path tmp-body;
    proxy_temp_path tmp-proxy;
    fastcgi_temp_path tmp-fastcgi;
    uwsgi_temp_path tmp-uwsgi;
    scgi_temp_path tmp-scgi;

    client_max_body_size 64m;        # Flower cuts what it sends into pieces of at most 20 MB
    client_header_timeout 10s;
    client_body_timeout 30s;         # between two reads: who trickles is cut off, and never reaches the SuperLink,
    proxy_request_buffering on;      # which gets whole requests only
    limit_conn_zone $binary_remote_addr zone=nodes:1m;
    limit_conn nodes 64;

    server {{
        listen {port} ssl;
        ssl_certificate server.pem;
        ssl_certificate_key server.key;
        ssl_protocols TLSv1.2 TLSv1.3;
{client}
        location ~ ^/v1/fleet/(?<route>{routes})$ {{
            limit_except POST {{ deny all; }}
            proxy_pass https://127.0.0.1:{superlink}/v1/fleet/$route; # what was matched, not what was sent
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_read_timeout 120s;
            proxy_ssl_trusted_certificate ca.crt;
            proxy_ssl_verify on;
            proxy_ssl_name localhost;
        }}
        location / {{ return 403; }} # Flower's Control and Runtime APIs, its health and its documentation
    }}
}}
"""

WITHOUT = """\
        # For client certificates as well, make the app with --client-certificates.
"""
WITH = """\
        ssl_client_certificate ca.crt;
        ssl_verify_client on;
"""

NODE = """\
# At a client, where the server wants client certificates: Flower's SuperNode cannot show one, so this does.
# Beside this file: ca.crt, and what node.sh made; node.pem is what the operator made of the request.
# Start: nginx -p "$PWD" -c node.conf
pid node.pid;
error_log error.log warn;
events {{ }}
http {{
    access_log off;
    client_body_temp_path tmp-body;
    proxy_temp_path tmp-proxy;
    fastcgi_temp_path tmp-fastcgi;
    uwsgi_temp_path tmp-uwsgi;
    scgi_temp_path tmp-scgi;
    client_max_body_size 64m;
    server {{
        listen 127.0.0.1:{near} ssl;
        ssl_certificate near.pem;
        ssl_certificate_key near.key;
        location /v1/fleet/ {{
            proxy_pass https://{address}/v1/fleet/;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_read_timeout 120s;
            proxy_ssl_certificate node.pem;
            proxy_ssl_certificate_key node.key;
            proxy_ssl_trusted_certificate ca.crt;
            proxy_ssl_verify on;
            proxy_ssl_name localhost;
        }}
    }}
}}
"""

CERTIFICATES = """\
#!/bin/sh
# Makes, in this folder: a CA (ca.crt, ca.key) and the server's certificate (server.pem, server.key). ca.key and
# server.key stay here; clients get ca.crt. A CA that is there already is kept.
{usage}set -eu
from="$PWD"
cd "$(dirname "$0")"
umask 077
key="-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
[ -f ca.key ] || openssl req -x509 $key -days 3650 -subj "/CN=federation CA" \\
    -addext keyUsage=critical,keyCertSign,cRLSign -keyout ca.key -out ca.crt 2>/dev/null
signed() {{ # a request, its certificate, whose it is, what that is good for: nothing of what the request itself says
    printf '%s\\n' "$4" basicConstraints=critical,CA:FALSE keyUsage=critical,digitalSignature \\
        subjectKeyIdentifier=hash authorityKeyIdentifier=keyid > extensions
    openssl x509 -req -in "$1" -CA ca.crt -CAkey ca.key -CAcreateserial -days 825 -subj "/CN=$3" \\
        -extfile extensions -out "$2"
    rm extensions
    chmod 644 "$2"
}}
{clients}openssl req $key -subj "/CN=server" -keyout server.key -out server.csr 2>/dev/null
signed server.csr server.pem server "subjectAltName={names}
extendedKeyUsage=serverAuth"
rm server.csr
chmod 644 ca.crt
"""

USAGE = """\
# With the request of a client, sh proxy/certificates.sh NAME.csr: makes that client's certificate, NAME.pem, beside it.
"""

# a client's certificate names no host and is good for clients only: nobody takes who shows it for the server
CLIENTS = """\
for csr in "$@"; do
    case "$csr" in /*) ;; *) csr="$from/$csr" ;; esac
    name="$(basename "$csr" .csr)"
    case "$name" in *[!A-Za-z0-9._-]*) echo "$name: letters, digits, '.', '_' and '-' only" >&2; exit 2 ;; esac
    signed "$csr" "${{csr%.csr}}.pem" "client $name" extendedKeyUsage=clientAuth
done
[ $# -eq 0 ] || exit 0
"""

REQUEST = """\
#!/bin/sh
# At a client, once: sh node.sh NAME. Makes NAME.csr, which goes to the server's operator, and its key, node.key; and
# near.pem and near.key, by which this machine's SuperNode knows the nginx beside it. The keys stay here.
set -eu
umask 077
key="-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
openssl req $key -subj "/CN=client" -keyout node.key -out "$1.csr" 2>/dev/null
openssl req -x509 $key -days 3650 -subj "/CN=near" -addext subjectAltName=IP:127.0.0.1,DNS:localhost \\
    -addext extendedKeyUsage=serverAuth -keyout near.key -out near.pem 2>/dev/null
"""


class Address(NamedTuple):
    """Where SuperNodes find the federation."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Address:
        """From 'host:port'."""
        found = re.fullmatch(r"([A-Za-z0-9](?:[A-Za-z0-9.-]{0,250}[A-Za-z0-9])?):([0-9]{1,5})", text)
        if not found or not 0 < int(found[2]) < 1 << 16:
            raise BadInput(f"--address should be HOST:PORT, such as federation.example.org:9092. Found {shown(text)}.")
        return cls(found[1], int(found[2]))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def names(self) -> str:
        """What the server's certificate says it is: the world's name for it, and loopback's."""
        own = "IP" if re.fullmatch(r"[0-9.]+", self.host) else "DNS"
        return f"{own}:{self.host},DNS:localhost,IP:127.0.0.1"


def write_proxy(folder: Path, address: Address, client_certificates: bool) -> None:
    """Write a new folder: the proxy's configuration, and a script that makes the certificates.

    Args:
        folder: where.
        address: where SuperNodes find the federation.
        client_certificates: whether the proxy asks for them.
    """
    folder.mkdir()
    client, usage, clients = (WITH, USAGE, CLIENTS) if client_certificates else (WITHOUT, "", "")
    names = {"address": address, "port": address.port, "superlink": SUPERLINK, "near": NEAR}
    files = {
        "nginx.conf": NGINX.format(client=client, routes="|".join(ROUTES), **names),
        "certificates.sh": CERTIFICATES.format(names=address.names, usage=usage, clients=clients.format()),
        **({"node.conf": NODE.format(**names), "node.sh": REQUEST} if client_certificates else {}),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
