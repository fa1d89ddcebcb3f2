"""TLS and SuperNode authentication: who is registered takes part, who is not is refused."""

from __future__ import annotations

import datetime
import ipaddress
import json
from pathlib import Path
from typing import Any

import pytest
from loopback import Loopback, loopback

from polyfed.deploy.init import init

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'polyfed[flower]'")
pytestmark = pytest.mark.processes

from cryptography import x509  # noqa: E402
from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402
from cryptography.x509.oid import NameOID  # noqa: E402

EXPERIMENT = """
rounds = 1
cohort = "all"
[data]
name = "nodes"
clients = 1
shape = [4]
objectives = {click = "binary"}
[model]
name = "linear"
[algorithm]
name = "fedavg"
"""


def certificate(name: str, key: Any, issuer: str, by: Any, ca: bool) -> bytes:
    def called(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.datetime.now(datetime.UTC)
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder().subject_name(called(name)).issuer_name(called(issuer)).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1)).add_extension(alternative, critical=False)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )  # fmt: skip
    return made.sign(by, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def make_certificates(folder: Path) -> None:
    ca, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    (folder / "ca.crt").write_bytes(certificate("ca", ca, "ca", ca, True))
    (folder / "server.pem").write_bytes(certificate("server", server, "ca", ca, False))
    (folder / "server.key").write_bytes(private(server, serialization.PrivateFormat.PKCS8))


def private(key: Any, form: Any) -> bytes:
    made: bytes = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return made


def make_key(path: Path) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(private(key, serialization.PrivateFormat.OpenSSH))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public)


def node(flower: Loopback, name: str, i: int) -> Any:
    import numpy as np

    rows = np.random.default_rng(i).normal(size=(20, 4)).astype(np.float32)
    np.savez(flower.folder / f"{name}.npz", x=rows, click=rows[:, 0] > 0)
    config = f'name="{name}" data="{flower.folder}/{name}.npz" state="{flower.folder}/state-{i}"'
    tls = "--root-certificates", str(flower.folder / "ca.crt")
    return flower.supernode(i, config, *tls, "--auth-supernode-private-key", str(flower.folder / name))


def test_only_registered_nodes_take_part(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    for name in ("clinic", "stranger"):
        make_key(tmp_path / name)
    Path("experiment.toml").write_text(EXPERIMENT)
    init(tmp_path / "app", "experiment.toml")
    with loopback(tmp_path) as flower:
        flower.configure(f'root-certificates = "{tmp_path}/ca.crt"')
        flower.superlink(
            "--ssl-ca-certfile", f"{tmp_path}/ca.crt", "--ssl-certfile", f"{tmp_path}/server.pem",
            "--ssl-keyfile", f"{tmp_path}/server.key", "--enable-supernode-auth",
        )  # fmt: skip
        flower.flwr("supernode", "register", str(tmp_path / "clinic.pub"), "loop")
        stranger = node(flower, "stranger", 1)
        node(flower, "clinic", 0)
        flower.run(tmp_path / "app", {"out": str(tmp_path / "run"), "timeout": 200.0})
        flower.until(lambda: (tmp_path / "run/result.json").is_file(), 300, "the run")
        assert stranger.wait(timeout=120) != 0
        clients = json.loads((tmp_path / "run/clients-0.json").read_text())["clients"]
        assert [client["name"] for client in clients] == ["clinic"]
        assert [client["examples"] for client in clients] == [20]
