# SPDX-License-Identifier: MIT
"""Requests that two parsers could read in two ways. Each row is refused, nothing of it
reaches the engine, the connection is closed, and bytes behind it are no request.

Each row is tried whole, byte by byte, and with a hidden `GET /smuggled` behind it.
"""

from harness import Case, Client, wait_until

HIDDEN = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


def post(*lines, body=b"", target=b"/tokenize", version=b"HTTP/1.1", host=b"Host: x"):
    head = [b"POST " + target + b" " + version] + ([host] if host else []) + list(lines)
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def chunked(body, *lines):
    return post(b"Transfer-Encoding: chunked", *lines, body=body)


CHUNKS = b"3\r\nabc\r\n0\r\n\r\n"

# name: (allowed answers, bytes)
REFUSED = {
    "H01_two_lengths": ((400,), post(b"Content-Length: 3", b"Content-Length: 4", body=b"abcd")),
    "H02_two_equal_lengths": ((400,), post(b"Content-Length: 3", b"Content-Length: 3", body=b"abc")),
    "H02_list_of_lengths": ((400,), post(b"Content-Length: 3, 3", body=b"abc")),
    "H03_plus_length": ((400,), post(b"Content-Length: +3", body=b"abc")),
    "H04_negative_length": ((400,), post(b"Content-Length: -3", body=b"abc")),
    "H04_hex_length": ((400,), post(b"Content-Length: 0x3", body=b"abc")),
    "H04_underscore_length": ((400,), post(b"Content-Length: 1_0", body=b"0123456789")),
    "H04_inner_space_length": ((400,), post(b"Content-Length: 1 0", body=b"0123456789")),
    "H04_letters_length": ((400,), post(b"Content-Length: 3a", body=b"abc")),
    "H04_huge_length": ((400, 413), post(b"Content-Length: 99999999999999999999", body=b"abc")),
    "H04_length_2_to_64_and_3": ((400, 413), post(b"Content-Length: 18446744073709551619", body=b"abc")),
    "CVE_2023_40225_empty_length": ((400,), post(b"Content-Length:", body=b"abc")),
    "H05_length_and_chunked": ((400,), post(b"Content-Length: 3", b"Transfer-Encoding: chunked", body=CHUNKS)),
    "H06_chunked_and_length": ((400,), post(b"Transfer-Encoding: chunked", b"Content-Length: 13", body=CHUNKS)),
    "H07_gzip_chunked": ((400, 501), post(b"Transfer-Encoding: gzip, chunked", body=CHUNKS)),
    "H08_identity": ((400, 501), post(b"Transfer-Encoding: identity", body=b"abc")),
    "H08_chunked_twice": ((400, 501), post(b"Transfer-Encoding: chunked, chunked", body=CHUNKS)),
    "H08_two_transfer_headers": ((400, 501), post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", body=CHUNKS)),
    "H08_two_chunked_headers": ((400, 501), post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=CHUNKS)),
    "H08_xchunked": ((400, 501), post(b"Transfer-Encoding: xchunked", body=CHUNKS)),
    "H08_chunked_parameter": ((400, 501), post(b"Transfer-Encoding: chunked;q=1", body=CHUNKS)),
    "H08_quoted_chunked": ((400, 501), post(b'Transfer-Encoding: "chunked"', body=CHUNKS)),
    "H08_empty_transfer": ((400, 501), post(b"Transfer-Encoding:", body=CHUNKS)),
    "H08_vertical_tab_chunked": ((400, 501), post(b"Transfer-Encoding: \x0bchunked", body=CHUNKS)),
    "H08_chunked_comma": ((400, 501), post(b"Transfer-Encoding: chunked,", body=CHUNKS)),
    "H08_chunked_in_1_0": ((400, 501), post(b"Transfer-Encoding: chunked", version=b"HTTP/1.0", body=CHUNKS)),
    "H09_space_before_colon": ((400,), post(b"Content-Length: 3", b"Transfer-Encoding : chunked", body=b"abc")),
    "H09_tab_before_colon": ((400,), post(b"Content-Length\t: 3", body=b"abc")),
    "H09_space_before_name": ((400,), post(b"X-A: 1", b" Content-Length: 3", body=b"abc")),
    "H10_folded_line": ((400,), post(b"X-A: 1", b"\tfolded", body=b"")),
    "H10_folded_transfer": ((400, 501), post(b"Transfer-Encoding:", b" chunked", body=CHUNKS)),
    "H11_chunk_0x3": ((400,), chunked(b"0x3\r\nabc\r\n0\r\n\r\n")),
    "H11_chunk_plus": ((400,), chunked(b"+3\r\nabc\r\n0\r\n\r\n")),
    "H11_chunk_leading_space": ((400,), chunked(b" 3\r\nabc\r\n0\r\n\r\n")),
    "H11_chunk_underscore": ((400,), chunked(b"3_0\r\nabc\r\n0\r\n\r\n")),
    "H11_chunk_minus": ((400,), chunked(b"-1\r\nabc\r\n0\r\n\r\n")),
    "H11_chunk_trailing_space": ((400,), chunked(b"3 \r\nabc\r\n0\r\n\r\n")),
    "H12_chunk_size_2_to_64": ((400, 413), chunked(b"10000000000000003\r\nabc\r\n0\r\n\r\n")),
    "H12_chunk_size_empty": ((400,), chunked(b"\r\nabc\r\n0\r\n\r\n")),
    "H12_chunk_size_letter": ((400,), chunked(b"g\r\nabc\r\n0\r\n\r\n")),
    "H13_chunk_without_CRLF": ((400,), chunked(b"3\r\nabcXX0\r\n\r\n")),
    "H13_chunk_LF_only_behind": ((400,), chunked(b"3\r\nabc\n0\r\n\r\n")),
    "H14_bare_LF_in_chunk_line": ((400,), chunked(b"3\nabc\r\n0\r\n\r\n")),
    "H14_bare_CR_in_chunk_line": ((400,), chunked(b"3\rabc\r\n0\r\n\r\n")),
    "H14_bare_LF_in_extension": ((400,), chunked(b"3;a\nabc\r\n0\r\n\r\n")),
    "H14_last_chunk_bare_LF": ((400,), chunked(b"3\r\nabc\r\n0\n\n")),
    "H16_bytes_behind_last_chunk": ((400,), chunked(b"3\r\nabc\r\n0\r\nXX\r\n\r\n")),
    "H18_length_in_trailer_name_space": ((400,), chunked(b"3\r\nabc\r\n0\r\nA : 1\r\n\r\n")),
    "H19_NUL_in_value": ((400,), post(b"User: adm\0in", b"Content-Length: 0")),
    "H19_NUL_in_name": ((400,), post(b"Us\0er: admin", b"Content-Length: 0")),
    "H20_CR_in_value": ((400,), post(b"User: adm\rin", b"Content-Length: 0")),
    "H20_control_in_value": ((400,), post(b"User: adm\x01in", b"Content-Length: 0")),
    "H20_DEL_in_name": ((400,), post(b"Us\x7fer: x", b"Content-Length: 0")),
    "H21_bare_LF_lines": ((400,), b"GET /health HTTP/1.1\nHost: x\n\n"),
    "H21_one_bare_LF": ((400,), b"GET /health HTTP/1.1\r\nHost: x\nX-A: 1\r\n\r\n"),
    "H21_bare_LF_behind_another_header": ((400,), b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: 1\nX-B: 2\r\n\r\n"),
    "H22_bare_CR_line": ((400,), b"GET /health HTTP/1.1\r\nHost: x\rX-A: 1\r\n\r\n"),
    "H22_LF_at_the_end": ((400,), b"GET /health HTTP/1.1\r\nHost: x\r\n\n"),
    "H23_no_Host": ((400,), post(b"Content-Length: 0", host=None)),
    "H24_two_Hosts": ((400,), post(b"Host: y", b"Content-Length: 0")),
    "H24_Host_with_path": ((400,), post(b"Content-Length: 0", host=b"Host: x/slots")),
    "H24_Host_with_query": ((400,), post(b"Content-Length: 0", host=b"Host: x?a")),
    "H24_Host_with_fragment": ((400,), post(b"Content-Length: 0", host=b"Host: x#a")),
    "H24_Host_with_user": ((400,), post(b"Content-Length: 0", host=b"Host: a@x")),
    "H24_Host_with_space": ((400,), post(b"Content-Length: 0", host=b"Host: x y")),
    "H24_empty_Host": ((400,), post(b"Content-Length: 0", host=b"Host:")),
    "H24_absolute_form_without_Host": ((400,), post(b"Content-Length: 0", target=b"http://x/tokenize", host=None)),
    "H33_version_9_9": ((400, 505), b"GET /health HTTP/9.9\r\nHost: x\r\n\r\n"),
    "H33_version_2_0": ((400, 505), b"GET /health HTTP/2.0\r\nHost: x\r\n\r\n"),
    "H33_preface": ((400, 505), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "H33_version_cut": ((400, 505), b"GET /health HTTP/1.\r\nHost: x\r\n\r\n"),
    "H33_version_long": ((400, 505), b"GET /health HTTP/1.10\r\nHost: x\r\n\r\n"),
    "H33_lower_case_protocol": ((400, 505), b"GET /health http/1.1\r\nHost: x\r\n\r\n"),
    "H33_no_version": ((400, 505), b"GET /health\r\nHost: x\r\n\r\n"),
    "H34_two_spaces_in_first_line": ((400,), b"GET  /health HTTP/1.1\r\nHost: x\r\n\r\n"),
    "H34_tab_in_first_line": ((400,), b"GET\t/health HTTP/1.1\r\nHost: x\r\n\r\n"),
    "H34_space_in_target": ((400, 505), b"GET /hea lth HTTP/1.1\r\nHost: x\r\n\r\n"),
    "H34_NUL_in_target": ((400,), b"GET /hea\0lth HTTP/1.1\r\nHost: x\r\n\r\n"),
    "H34_fragment_in_target": ((400,), post(b"Content-Length: 0", target=b"/tokenize#a")),
    "H34_byte_0x80_in_target": ((400,), post(b"Content-Length: 0", target=b"/tokenize\x80")),
    "H34_space_behind_version": ((400, 505), b"GET /health HTTP/1.1 \r\nHost: x\r\n\r\n"),
    "H34_target_without_slash": ((400,), b"GET health HTTP/1.1\r\nHost: x\r\n\r\n"),
    "H35_method_with_separator": ((400,), b"G@T /health HTTP/1.1\r\nHost: x\r\n\r\n"),
    "H35_CONNECT": ((400, 405), b"CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n"),
    "H36_empty_name": ((400,), post(b": empty", b"Content-Length: 0")),
    "H36_no_colon": ((400,), post(b"NoColon", b"Content-Length: 0")),
    "H36_name_with_brace": ((400,), post(b"X{A}: 1", b"Content-Length: 0")),
    "H39_long_head": ((431,), post(b"X-Long: " + b"y" * 40000, b"Content-Length: 0")),
}

# What a strict gateway takes, and what the engine then sees.
ACCEPTED = {
    "H15_chunk_extension": chunked(b"3;a=b\r\nabc\r\n0\r\n\r\n"),
    "H15_extension_of_last_chunk": chunked(b"3\r\nabc\r\n0;x\r\n\r\n"),
    "H17_trailers": chunked(b"3\r\nabc\r\n0\r\nX-T: 1\r\nContent-Length: 9\r\n\r\n"),
    "H12_upper_and_leading_zeros": chunked(b"0003\r\nabc\r\n000\r\n\r\n"),
    "H08_letter_case": post(b"tRANSFER-eNCODING: ChUnKeD", body=CHUNKS),
    "H33_version_1_2": post(b"Content-Length: 3", version=b"HTTP/1.2", body=b"abc"),
    "H04_leading_zeros": post(b"Content-Length: 003", body=b"abc"),
    "H04_blanks_around": post(b"Content-Length:   3  ", body=b"abc"),
}


class Shared(Case):
    """One gateway for all rows: none of them may leave a trace."""

    @classmethod
    def setUpClass(cls):
        cls.shared = None

    def setUp(self):
        self.need_gateway()
        if type(self).shared is None:
            type(self).shared = holder = Case()
            holder._outcome = self._outcome
            Case.setUp(holder)
            holder.pair({"timeouts": {"idle": "5s"}})
        self.e, self.g = self.shared.engines[0], self.shared.gateways[0]
        self.engines, self.gateways = [], []

    @classmethod
    def tearDownClass(cls):
        if cls.shared is not None:
            cls.shared.doCleanups()

    def sentinel(self):
        """Requests of this test's targets that reached the engine."""
        return [r for r in self.e.requests() if r.path in ("/tokenize", "/smuggled")
                or r.header("User") or (r.path == "/health" and r.header("Host") == ["x"])]


class Refused(Shared):
    def refuse(self, allowed, raw):
        before = len(self.sentinel())
        for data, cut in ((raw, None), (raw + HIDDEN, None), (raw, 1), (raw + HIDDEN, 3)):
            if cut and len(raw) > 2000:
                cut = 700
            with self.g.client() as client:
                try:
                    client.send(data, cut)
                except OSError:
                    pass  # it may close before we are done
                # What is cut short waits for more unless the connection ends here.
                answer = client.read_answer()
                self.assertIn(answer.status, allowed)
                self.assertIn("error", answer.json())
                self.assertEqual(answer.get("Connection"), "close")
                self.assertTrue(client.wait_closed())
                self.assertEqual(client.buffer, b"", "bytes behind the answer")
        self.assertEqual(len(self.sentinel()), before, "something reached the engine")


class Taken(Shared):
    def take(self, raw):
        for cut in (None, 1):
            with self.g.client() as client:
                client.send(raw + HIDDEN.replace(b"/smuggled", b"/next"), cut)
                # The engine finds "abc" no JSON: its own answer shows that it got there.
                answer = client.read_answer()
                record = self.e.requests("/tokenize")[-1]
                self.assertGreaterEqual(answer.status, 400)
                self.assertEqual(answer.status, record.status)
                self.assertEqual(record.body, b"abc")
                self.assertEqual(record.header("Content-Length"), ["3"])
                self.assertEqual(record.header("Transfer-Encoding"), [])
                self.assertEqual(answer.version, "HTTP/1.1")
                self.assertEqual(client.read_answer().status, 404)

    def test_H31_close_wins_over_keep_alive(self):
        with self.g.client() as client:
            client.send(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, close\r\n\r\n"
                        + HIDDEN)
            self.assertEqual(client.read_answer().status, 200)
            self.assertTrue(client.wait_closed())
            self.assertEqual(client.buffer, b"")
        self.assertEqual(self.e.requests("/smuggled"), [])

    def test_H24_absolute_form_does_not_choose_the_engine(self):
        with self.g.client() as client:
            client.send(b"GET http://other.example/absolute HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(client.read_answer().status, 404)
        record = self.e.requests("/absolute")[-1]
        self.assertEqual(record.header("Host"), [self.e.url.removeprefix("http://")])

    def test_H35_unknown_methods_are_relayed(self):
        for method in (b"PURGE", b"get", b"M-SEARCH"):
            with self.g.client() as client:
                client.send(method + b" /odd-method HTTP/1.1\r\nHost: x\r\n\r\n")
                answer = client.read_answer()
            record = self.e.requests("/odd-method")[-1]
            self.assertEqual(record.method, method.decode())
            self.assertEqual(answer.status, record.status)

    def test_H35_OPTIONS_star_is_answered(self):
        with self.g.client() as client:
            client.send(b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertLess(client.read_answer().status, 500)

    def test_engine_gets_a_clean_Host(self):
        with self.g.client() as client:
            client.send(b"GET /clean-host HTTP/1.1\r\nHost: public.example:99\r\n\r\n")
            client.read_answer()
        self.assertEqual(len(self.e.requests("/clean-host")[-1].header("Host")), 1)

    def test_empty_line_before_a_request_does_no_harm(self):
        with self.g.client() as client:
            client.send(b"\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertIn(client.read_answer().status, (200, 400))


def _add(cls, method, rows):
    def make(arguments):
        return lambda self: getattr(self, method)(*arguments)
    for name, row in rows.items():
        setattr(cls, "test_" + name, make(row if isinstance(row, tuple) else (row,)))


_add(Refused, "refuse", REFUSED)
_add(Taken, "take", ACCEPTED)


class Silence(Shared):
    def test_incomplete_requests_reach_nobody(self):
        """A request whose end never comes is not forwarded in part."""
        before = len(self.sentinel())
        whole = post(b"Content-Length: 20", body=b"0123456789")
        for end in (5, 30, len(whole) - 10, len(whole)):
            client = Client(self.g.port)
            client.send(whole[:end])
            client.close()
        wait_until(lambda: self.g.in_flight() == 0, "idle")
        self.assertEqual(len(self.sentinel()), before)


