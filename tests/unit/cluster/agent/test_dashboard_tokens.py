"""Tokens of ``potluck dashboard``."""

from __future__ import annotations

from potluck.cluster.agent.dashboard_tokens import MAX_TOKENS, VALID_SECONDS, DashboardTokens


def test_a_token_is_valid_for_its_time_and_nothing_else_is() -> None:
    now = 100.0
    tokens = DashboardTokens(lambda: now)
    token, other = tokens.make(), tokens.make()
    assert token != other
    assert tokens.admits(token)
    assert tokens.admits(other)
    for wrong in ("", token[:-1], token + "x", "pt-", "\udcff", "x" * 100_000):
        assert not tokens.admits(wrong)
    now += VALID_SECONDS - 1
    assert tokens.admits(token)
    now += 2
    assert not tokens.admits(token)


def test_the_oldest_of_too_many_goes() -> None:
    tokens = DashboardTokens(lambda: 0.0)
    made = [tokens.make() for _ in range(MAX_TOKENS + 1)]
    assert [tokens.admits(each) for each in made] == [False, *[True] * MAX_TOKENS]
