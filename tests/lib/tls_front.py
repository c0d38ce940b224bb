# SPDX-License-Identifier: MIT
"""TLS for tests: an authority of one's own (with the `openssl` command), and a service that
takes TLS off and passes the bytes on to an engine on another port. The same for UNIX sockets."""

import os
import select
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import unittest


class Authority:
    """Makes keys and certificates in a folder."""

    def __init__(self, folder, name="test authority"):
        if not shutil.which("openssl"):
            raise unittest.SkipTest("needs the openssl command")
        self.folder = os.path.join(folder, name.replace(" ", "-"))
        os.makedirs(self.folder)
        self.n = 0
        self.ca = self.path("ca.pem")
        self.run("req", "-x509", *self.new_key("ca.key"), "-out", self.ca, "-days", "2",
                 "-subj", f"/CN={name}")

    def path(self, name):
        return os.path.join(self.folder, name)

    def new_key(self, name):
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                "-keyout", self.path(name)]

    def run(self, *arguments):
        done = subprocess.run(["openssl", *arguments], capture_output=True, cwd=self.folder,
                              text=True, check=False)
        assert done.returncode == 0, done.stderr

    def issue(self, names="DNS:localhost,IP:127.0.0.1", days=1, common_name="engine",
              subject=None, purpose=None, start=None):
        """(certificate file, key file); days < 0: has expired. names "": of the common name
        alone. `start`: a year from which on it is valid."""
        self.n += 1
        cert, key = self.path(f"{self.n}.pem"), self.path(f"{self.n}.key")
        self.run("req", *self.new_key(key), "-out", "request", "-subj",
                 subject or f"/CN={common_name}")
        with open(self.path("extensions"), "w", encoding="ascii") as f:
            f.write(f"subjectAltName={names}\n" if names else "basicConstraints=CA:FALSE\n")
            f.write(f"extendedKeyUsage={purpose}\n" if purpose else "")
        if start:
            self.sign_from(start, cert)
        else:
            self.run("x509", "-req", "-in", "request", "-CA", self.ca, "-CAkey", "ca.key",
                     "-CAcreateserial", "-days", str(days), "-extfile", "extensions",
                     "-out", cert)
        return cert, key

    def sign_from(self, year, cert):
        """`openssl x509` signs from now on; `openssl ca` keeps books and can do this."""
        with open(self.path("ca.cnf"), "w", encoding="ascii") as f:
            f.write("[ca]\ndefault_ca=own\n[own]\ndatabase=books\nnew_certs_dir=.\n"
                    "rand_serial=yes\npolicy=any\ndefault_md=sha256\n"
                    "[any]\ncommonName=supplied\n")
        with open(self.path("books"), "w", encoding="ascii"):
            pass
        self.run("ca", "-batch", "-notext", "-config", "ca.cnf", "-cert", self.ca, "-keyfile",
                 "ca.key", "-in", "request", "-extfile", "extensions", "-startdate",
                 f"{year}0102000000Z", "-enddate", f"{year}0103000000Z", "-out", cert)

    def lock(self, key):
        """A copy of the key with a password."""
        self.run("ec", "-aes256", "-passout", "pass:secret", "-in", key, "-out", "locked.key")
        return self.path("locked.key")


def server_context(cert, key, client_ca=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    return context


class Front:
    """Listens with TLS (`context`), or at a path, and passes what comes to a port. `shakes`
    False: it accepts and never answers a handshake. `blunt`: it ends connections without
    TLS's own end."""

    def __init__(self, port, context=None, path=None, shakes=True, blunt=False):
        self.context, self.path, self.engine_port = context, path, port
        self.shakes, self.blunt = shakes, blunt
        self.lock = threading.Lock()
        self.accepted = self.resumed = 0
        self.names, self.failures, self.open = [], [], []
        if context:
            context.sni_callback = lambda sock, name, _: self.names.append(name)
        if path:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(path)
            self.listener.listen(128)
            self.port = None
        else:
            self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
            self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self):
        return f"unix:{self.path}" if self.path else f"https://localhost:{self.port}"

    def stop(self):
        self.listener.close()
        self.drop_all()

    def drop_all(self, reset=False):
        """Ends every connection, idle ones as well."""
        with self.lock:
            socks, self.open = self.open, []
        for sock in socks:
            try:
                if reset:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    sock.close()
                else:
                    sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            with self.lock:
                self.accepted += 1
                self.open.append(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock):
        if not self.shakes:
            return
        sealed = self._shake(sock) if self.context else sock
        if not sealed:
            return
        try:
            with socket.create_connection(("127.0.0.1", self.engine_port)) as engine:
                engine.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._pass_on(sealed, engine)
            if self.context and not self.blunt:
                sealed.unwrap()
        except (OSError, ValueError) as error:
            self.failures.append(str(error))
        finally:
            sealed.close()

    def _shake(self, sock):
        spare = sock.dup()          # a close with unread input would reset, and lose the alert
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sealed = self.context.wrap_socket(sock, server_side=True)
        except (OSError, ValueError) as error:
            self.failures.append(str(error))
            self._linger(spare)
            return None
        spare.close()
        with self.lock:
            self.open.append(sealed)
            self.resumed += bool(sealed.session_reused)
        return sealed

    @staticmethod
    def _linger(sock):
        with sock:
            try:
                sock.shutdown(socket.SHUT_WR)
                sock.settimeout(5)
                while sock.recv(1 << 16):
                    pass
            except OSError:
                pass

    @staticmethod
    def _pass_on(sealed, engine):
        while True:
            waiting = isinstance(sealed, ssl.SSLSocket) and sealed.pending()
            ready = [sealed] if waiting else select.select([sealed, engine], [], [])[0]
            for sock, other in ((sealed, engine), (engine, sealed)):
                if sock not in ready:
                    continue
                data = sock.recv(1 << 16)
                if not data:
                    return
                other.sendall(data)
