# SPDX-License-Identifier: MIT
"""The figures of bench/clients.py, on requests whose saving is known."""

import os
import random
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import clients  # noqa: E402


def rows(documents, cold_ms=1000, warm_ms=100, stock_ms=150):
    """Eight questions each; the first and every fourth behind it are cold."""
    gateway, stock = [], []
    for turn in range(8):
        for d in range(documents):
            cold = turn % 4 == 0
            common = {"group": str(d), "turn": str(turn), "prompt_tokens": "400"}
            gateway.append({**common, "ttft_ms": str((cold_ms if cold else warm_ms) + d),
                            "cached_tokens": "0" if cold else "370"})
            stock.append({**common, "ttft_ms": str(stock_ms + d), "cached_tokens": "370"})
    return gateway, stock


def stats(confirmed_ms, measured_ms):
    return {"total": {"misses": {"control": 3}}, "replicas": [{"savings": {
        "confirmed": {"n": 10, "saved_ms": 10 * confirmed_ms, "low": 10 * confirmed_ms - 50,
                      "high": 10 * confirmed_ms + 50},
        "measured": {"n_cold": 3, "n_cached": 18, "saved_ms_per_request": measured_ms,
                     "low": None if measured_ms is None else measured_ms - 9,
                     "high": None if measured_ms is None else measured_ms + 9}}}]}


class Figures(unittest.TestCase):
    def figures(self, own, gateway, stock):
        blocks = [{"client": "bench", "gateway": clients.seen(gateway, 0),
                   "stock": clients.seen(stock, 0)}]
        return clients.analyse(blocks, {"bench": own}, random.Random(1))

    def test_each_saving_is_of_its_own_requests(self):
        f = self.figures(stats(901, 899), *rows(3))["bench"]
        for name in ("mean", "median"):
            self.assertEqual(f["held_out"][name],
                             {"value": 900, "low": 900, "high": 900, "n": [3, 18]})
            self.assertEqual(f["against_stock"][name]["value"], 50)
            self.assertEqual(f["against_stock"][name]["n"], 18)
        self.assertEqual((f["first_question"]["value"], f["first_question"]["n"]), (900, 3))
        self.assertEqual(f["held_out_seen"], 3)
        self.assertEqual(f["own"]["confirmed"], {"value": 901, "low": 896, "high": 906, "n": 10})
        self.assertEqual(f["own"]["measured"]["n"], [3, 18])

    def test_answers_without_a_word_are_left_out_in_pairs(self):
        gateway, stock = rows(2)
        gateway[2]["ttft_ms"] = stock[5]["ttft_ms"] = ""    # two hits
        f = self.figures(stats(900, 900), gateway, stock)["bench"]
        self.assertEqual(f["without_first_token"], 2)
        self.assertEqual(f["held_out"]["mean"]["n"], [2, 11])
        self.assertEqual(f["against_stock"]["mean"]["n"], 10)

    def test_intervals_hold_what_varies(self):
        gateway, stock = rows(3)
        rng = random.Random(7)
        for row in gateway:
            row["ttft_ms"] = str(float(row["ttft_ms"]) + rng.uniform(-40, 40))
        mean = self.figures(stats(900, 900), gateway, stock)["bench"]["held_out"]["mean"]
        self.assertLess(mean["low"], mean["value"])
        self.assertLess(mean["low"], 900)
        self.assertGreater(mean["high"], 900)

    def test_verdicts_say_what_overlaps(self):
        f = self.figures(stats(900, 950), *rows(2))
        text = "\n".join(clients.verdicts(f))
        self.assertIn("measured saving: the intervals DO NOT OVERLAP", text)
        self.assertIn("confirmed saving: the intervals overlap", text)
        f = self.figures(stats(900, None), *rows(2))
        self.assertIn("measured saving: one of them is not told", "\n".join(clients.verdicts(f)))

    def test_nothing_held_out_is_a_failure(self):
        gateway, stock = rows(2)
        with self.assertRaises(clients.Failed):
            self.figures(stats(900, 900), gateway[:4], stock[:4])
