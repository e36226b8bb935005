"""One variant is right, one has a product that is off by 1/16, one a softmax that is not shares."""

from __future__ import annotations

from support.engines.fake_backends.behaviour import note_call, right_results, say

note_call()
bad_product, bad_softmax = right_results(), right_results()
bad_product["q4_0"][10][40] += 1 / 16
bad_softmax["softmax"][20] = [1 / 32] * 32
say({"results": {"a": bad_product, "b": right_results(), "c": bad_softmax}})
