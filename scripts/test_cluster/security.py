"""Hostile messages, and untrusted connections."""

import datetime
import ipaddress
import json
import struct
import time
import zlib
from pathlib import Path

from cluster import check, prompts
from processes import free_port, wait_until

# A password that needs escapes in a URL.
PASSWORD = "p:w/@ %25?#x"


def hostile(cluster, _short):
    """Invalid messages: they become dead letters, and the worker keeps running."""
    worker = cluster.worker()
    listed = prompts(cluster.folder / "hostile.jsonl", 1, first=20_000)
    batch, _ = cluster.run("submit", listed)
    cluster.wait(batch, 60)
    key = cluster.manifest(batch)[0]["key"]
    job = {
        "v": 1, "job": "0" * 32, "key": key, "model": "tiny", "priority": "batch",
        "recipe": {"prompt": "x", "seed": 1}, "format": {"type": "png"}, "submitted": 1,
    }  # fmt: skip
    messages = [
        b"", b"\xff" * 1000, b"[" * 60_000, b"null", b"x" * 200_000, b"x" * (20 << 20), json.dumps({"v": 2}).encode(),
        b'{"v": 1e999}', b'{"v": -1}', b'{"v":1,"v":1}', b'{"v":1,"job":"' + b"\\ud800" * 9 + b'"}',
        json.dumps(job).encode(),
        json.dumps(job | {"key": "out/../../etc/passwd"}).encode(),
        json.dumps(job | {"key": "/etc/passwd"}).encode(),
        json.dumps(job | {"key": key.replace("png", "error.json")}).encode(),
        json.dumps(job | {"recipe": {"prompt": "x", "inputs": ["/etc/passwd"]}}).encode(),
        json.dumps(job | {"recipe": {"prompt": "x", "mask": "in/../../etc/passwd", "inputs": ["in/" + "0" * 64]}}).encode(),
        json.dumps(job | {"recipe": {"prompt": "x", "adapters": [{"file": "/dev/zero", "strength": 1}]}}).encode(),
        json.dumps(job | {"recipe": {"prompt": "x", "seed": 1, "steps": 10**18, "width": 10**18}}).encode(),
        json.dumps(job | {"model": "../tiny"}).encode(),
        json.dumps(job | {"model": "other"}).encode(),
        json.dumps(job | {"priority": "online"}).encode(),
        json.dumps(job | {"line": 2**64}).encode(),
        json.dumps(job | {"shell": "rm -rf /"}).encode(),
    ]  # fmt: skip
    for message in messages:
        cluster.publish(message, "flux.tiny.batch")
    lies = [{"x-delivery-count": 2**63 - 1}, {"x-delivery-count": -(2**63)}, {"x-delivery-count": "many"}, {"x-death": [{"queue": "../x"}]}]
    for headers in lies:
        cluster.publish(json.dumps(job).encode(), "flux.tiny.batch", headers=headers)
    for order in (b"\x00not an order", json.dumps({"v": 1, "cancel": "../../x"}).encode()):
        cluster.publish(order, "", exchange="flux.control")
    count = len(messages) + len(lies)
    wait_until(lambda: cluster.waiting("flux.dead") == count, 120, f"{count} dead messages")
    out, _ = cluster.run("queue", "dead", "list", "--json")
    reasons = [json.loads(line)["reason"] for line in out.splitlines()]
    check(len(reasons) == count and all(reasons), f"{count} hostile messages are dead, each with a reason")
    check(any("its key does not match its recipe" in reason for reason in reasons), "an invented key is refused")
    check(worker.starts == 1, "the worker keeps running")
    cluster.run("queue", "dead", "retry", "--all")
    wait_until(lambda: cluster.waiting("flux.dead") == count, 120, f"{count} dead messages")
    check(worker.starts == 1, "sent again, they are dead again")
    cluster.run("queue", "dead", "drop", "--all")
    check(cluster.waiting("flux.dead") == 0, "and after drop, they are gone")
    hostile_inputs(cluster, worker)
    check(cluster.end_workers() == [0], "the worker ends as usual")


def png_bomb(side):
    """A small file with a very large image."""
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))  # noqa: E731
    pixels, row = zlib.compressobj(9), bytes(side + 1)
    data = b"".join(pixels.compress(row) for _ in range(side)) + pixels.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def hostile_inputs(cluster, worker):
    """Jobs with invalid images and adapters: each fails with a reason."""
    files = {
        "bomb.png": png_bomb(30_000),
        "cut.png": png_bomb(64)[:60],
        "none.png": b"no picture",
        "none.safetensors": b"\xff" * 64,
        "empty.safetensors": b"",
    }
    lines = []
    for name, data in files.items():
        path = cluster.folder / name
        path.write_bytes(data)
        what = {"inputs": [str(path)]} if name.endswith(".png") else {"adapters": [{"file": str(path), "strength": 1}]}
        lines.append({"prompt": name, "seed": 1, "size": 64, "steps": 1, **what})
    listed = cluster.folder / "inputs.jsonl"
    listed.write_text("".join(json.dumps(line) + "\n" for line in lines))
    batch, _ = cluster.run("submit", listed)
    check(cluster.wait(batch, 120)["failed"] == len(files), f"{len(files)} jobs with hostile inputs fail")
    keys = [job["key"].rsplit(".", 1)[0] for job in cluster.manifest(batch)]
    errors = [json.loads(cluster.object(f"{key}.error.json"))["error"] for key in keys]
    check(all(errors) and not any("/tmp/" in error for error in errors), "each has a reason, and names no path of the worker")
    check(worker.starts == 1, "the worker keeps running")


def certificates(folder):
    """Creates two authorities, and certificates of the first one for 127.0.0.1 and for a client."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)

    def make(name, issuer=None, use=None):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        ca, ca_key = issuer or (None, key)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(ca.subject if ca else subject)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - day).not_valid_after(now + day)
        builder = builder.add_extension(x509.BasicConstraints(ca=ca is None, path_length=None), critical=True)
        if use is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        if use == ExtendedKeyUsageOID.SERVER_AUTH:
            address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
        certificate = builder.sign(ca_key, hashes.SHA256())
        plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (folder / f"{name}.key").write_bytes(key.private_bytes(*plain))
        return certificate, key

    authority = make("authority")
    make("other")
    make("server", authority, ExtendedKeyUsageOID.SERVER_AUTH)
    make("client", authority, ExtendedKeyUsageOID.CLIENT_AUTH)


def tls(cluster, _short):
    """A broker with TLS and its own user: accepted and refused connections."""
    folder = cluster.folder / "certificates"
    folder.mkdir()
    certificates(folder)
    port = free_port()
    options = [
        f"listeners.ssl.1 = 127.0.0.1:{port}",
        f"listeners.ssl.2 = 127.0.0.2:{port}",
        f"ssl_options.cacertfile = {folder}/authority.pem",
        f"ssl_options.certfile = {folder}/server.pem",
        f"ssl_options.keyfile = {folder}/server.key",
        "ssl_options.verify = verify_peer",
        "ssl_options.fail_if_no_peer_cert = false",
        "",
    ]
    cluster.broker.configure("\n".join(options))
    cluster.broker.control("add_user", "flux", PASSWORD)
    cluster.broker.control("set_permissions", "flux", ".*", ".*", ".*")
    password, wrong = cluster.folder / "password", cluster.folder / "wrong"
    password.write_text(PASSWORD + "\n")
    wrong.write_text("no")
    url = f"amqps://flux@127.0.0.1:{port}"
    ca = ["--queue-ca", folder / "authority.pem"]
    named = ["--queue", url, *ca, "--queue-password-file", password]
    listed = prompts(cluster.folder / "tls.jsonl", 20, first=90_000)
    began, told = time.monotonic(), ""
    for flags, what in (
        (["--queue", url, "--queue-password-file", password], "without the authority"),
        (["--queue", url, "--queue-ca", folder / "other.pem", "--queue-password-file", password], "with another authority"),
        (["--queue", url.replace("0.1:", "0.2:"), *ca, "--queue-password-file", password], "by an address that is not in the certificate"),
        (["--queue", url, *ca, "--queue-password-file", wrong], "with a wrong password"),
        (["--queue", url.replace("flux@", "nobody@"), *ca, "--queue-password-file", password], "as another user"),
        (["--queue", url + "/elsewhere", *ca, "--queue-password-file", password], "to another virtual host"),
    ):
        for command in (["submit", listed], ["worker", "--name", "tiny", "--device", "cpu"]):
            _, error = cluster.run(*command, *flags, code=2)
            reason = next(line for line in error.splitlines() if line.startswith("error: "))
            check("refused the connection" in reason, f"{what}, {command[0]} is refused: {reason[:150]}")
            told += error
    check(PASSWORD not in told, "no error contains the password")
    print(f"refused after {(time.monotonic() - began) / 12:.1f} s each", flush=True)
    plain = url.replace("amqps", "amqp").replace(str(port), str(cluster.broker.port))
    _, error = cluster.run("submit", listed, "--queue", plain, *ca, code=2)
    check("certificates require amqps" in error, "an authority without TLS is refused")
    worker = cluster.worker(*named, "--queue-cert", folder / "client.pem", "--queue-key", folder / "client.key")
    batch, _ = cluster.run("submit", listed, *named)
    check(cluster.wait(batch, 120)["done"] == 20, "with authority, password and certificate, 20 jobs are done")
    line = Path(f"/proc/{worker.process.pid}/cmdline").read_bytes() + Path(f"/proc/{worker.process.pid}/environ").read_bytes()
    check(PASSWORD.encode() not in line, "the password is not on any command line")
    check(cluster.end_workers() == [0], "the worker ends as usual")
    kept = dict(cluster.environment)
    cluster.environment |= {"FLUX_QUEUE": url, "FLUX_QUEUE_PASSWORD": PASSWORD}
    out, _ = cluster.run("queue", "status", *ca)
    check("flux.tiny.batch" in out, "a password from the environment also works")
    cluster.environment = kept
    cluster.broker.configure("ssl_options.fail_if_no_peer_cert = true\n")
    _, error = cluster.run("queue", "status", *named, code=None)
    check("the broker" in error, f"without a certificate, a broker that requires one refuses: {error.splitlines()[0][:150]}")
    out, _ = cluster.run("queue", "status", *named, "--queue-cert", folder / "client.pem", "--queue-key", folder / "client.key")
    check("flux.tiny.batch" in out, "with a certificate, it accepts")
