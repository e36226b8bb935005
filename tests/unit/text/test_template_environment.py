"""The environment of chat templates: what it offers and what it forbids."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from support.processes.waiting import done_within

from potluck.errors import ChatTemplateError
from potluck.text.template_environment import free_variables, run_template

NOW = datetime(2024, 11, 20, tzinfo=UTC)


def render(source: str, **variables: object) -> str:
    return run_template(source, variables, now=NOW)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
        ("{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}"
         "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "02"),
        ("{% for i in [7, 8] %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}",
         "1/2False 2/2True "),
        ("{% for i in [] %}x{% else %}none{% endfor %}{% for i in nothing %}x{% endfor %}", "none"),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{{ '<é\U00020000>' | tojson(ensure_ascii=true) }}", '"<\\u00e9\U00020000>"'),
        ("{{ {'b': 1, 'a': [2]} | tojson(separators=(',', ':'), sort_keys=true) }}",
         '{"a":[2],"b":1}'),
        ("{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x is defined }}", "1False"),
        ("{{ dict(a=1) }}{% set d = {'items': 2, 'b': 3} %}{{ d.b }}{{ d['items'] }}",
         "{'a': 1}32"),
        ("{{ strftime_now('%Y-%m-%d') }}", "2024-11-20"),
        ("{% generation %}{{ 1 ~ 'a' ~ none }}{% endgeneration %}", "1aNone"),
        ("{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}"
         "{% endfor %}{{ ns.n * 2 }}{{ 2 ** 5 }}{{ 'ab' * 2 }}{{ [1] + [2] }}", "632abab[1, 2]"),
        ("{% macro f(x) %}{% for i in x %}({{ i }}){% endfor %}{% endmacro %}{{ f([1, 2]) }}",
         "(1)(2)"),
        ("{% for i in [[1], [2, [3]]] recursive %}"
         "{% if i is iterable %}[{{ loop(i) }}]{% else %}{{ i }}{% endif %}{% endfor %}",
         "[1][2[3]]"),
        ("{% set n = [] %}{% set _ = n.append(1) %}{{ n }}", "[1]"),
        ("{{ dict(function='a', context='b') | tojson }}", '{"function": "a", "context": "b"}'),
    ],
)  # fmt: skip
def test_what_templates_count_on(source: str, expected: str) -> None:
    assert render(source) == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n{% if %}", "syntax error at line 2"),
        ("{{ raise_exception('no\nway') }}", "rejects the messages: no way"),
        ("{{ missing.name }}", "'missing' is undefined"),
        ("{{ ''.__class__.x }}", "unsafe"),
        ("{{ items.insert(0, 1) }}", "'insert' of 'list' object is unsafe"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ namespace(_a=1) }}", "cannot have the attribute _a"),
        ("{% set ns = namespace() %}{% set ns._a = 1 %}", "cannot have the attribute _a"),
        ("{% set ns = namespace() %}{{ ns.__class__.x }}", "unsafe"),
        ("{{ dict.fromkeys.__globals__ }}", "unsafe|undefined|no attribute"),
        ("{{ {}['a'].b }}", "no attribute"),
        ("{{ 'a' + 1 }}", "can only concatenate"),
        ("{% include 'x' %}", "no loader"),
        ("{{ cycler() }}", "at least one item"),
        ("{{ dict(a=1, a=2) }}", "keyword argument repeated"),
        ("{% for i in [1] %}" * 30 + "{% endfor %}" * 30, "nested blocks"),
        ("{{ lipsum(1) }}", "'lipsum' is undefined"),
    ],
)
def test_mistakes_are_one_line(source: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message) as error:
        render(source, items=[])
    assert "\n" not in error.value.message
    assert error.value.hint


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(1000000000) %}{% endfor %}",
        "{{ range(300000) | list | length }}",
        "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
        "{% for i in range(9999) %}{% for j in 'x' * 9999 %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(99999) %}{{ text }}{% endfor %}",
        "{{ 'x' * 999999999 }}",
        "{{ [1] * 999999999 }}",
        "{{ 99999 * 'xxxxxxxxx' * 99999 }}",
        "{{ 10 ** 100000 }}",
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}"
        "{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
        "{% endfor %}",
    ],
)
def test_endless_templates_end(source: str) -> None:
    with done_within(10), pytest.raises(ChatTemplateError):
        render(source, text="x" * 1000)


@pytest.mark.slow
def test_a_long_chat_is_within_the_limits() -> None:
    source = (
        "{% for m in messages %}{% for part in m.content.split(' ') %}"
        "{{ part.strip() ~ ' ' }}{% endfor %}{% endfor %}"
    )
    messages = [{"content": "a b c d e f"}] * 5000
    assert len(render(source, messages=messages)) == 60_000


@pytest.mark.slow
def test_a_long_chat_may_take_more_steps() -> None:
    source = "{% for a in messages %}{% for b in messages %}{% endfor %}{% endfor %}"
    assert render(source, messages=[{}] * 1000) == ""
    with pytest.raises(ChatTemplateError, match="too many steps"):
        render(source + source + source, messages=[{}] * 1000)
    with pytest.raises(ChatTemplateError, match="too many steps"):
        render("{% for a in others %}{% for b in others %}{% endfor %}{% endfor %}",
               messages=[{}], others=[{}] * 1000)  # fmt: skip


def test_variables_that_a_template_reads() -> None:
    source = "{% set a = b %}{{ a }}{% for m in messages %}{{ m.c }}{% endfor %}"
    assert free_variables(source) == {"b", "messages"}
    assert free_variables("{% if") == frozenset()
    assert free_variables("{{ " + "9" * 5000 + " }}") == frozenset()


@pytest.mark.parametrize(
    "step",
    ["n + n", "n - (0 - n)", "2 * n", "n * 2", "2 ** n", "1 // n", "1 / n", "1 % n"],
)
def test_numbers_have_a_limit(step: str) -> None:
    source = "{% set n = ('f' * 4000) | int(0, 16) %}{{ (" + step + ") and 1 }}"
    with pytest.raises(ChatTemplateError, match="a number that is too large"):
        render(source)


def test_numbers_up_to_the_limit() -> None:
    source = (
        "{% set n = ('f' * 1024) | int(0, 16) %}{{ [n + n, n * 2, 2 * n, n // n, n % n] | length }}"
    )
    assert render(source) == "5"
