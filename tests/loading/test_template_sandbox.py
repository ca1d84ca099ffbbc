"""Templates of others are programs: each limit ends one in time, whatever the thread."""

import threading
import time

import pytest
from jinja2 import TemplateError

from dflash_mlx.loading.template_limits import TemplateLimit
from dflash_mlx.loading.template_sandbox import BoundedEnvironment

GROW = "{% set ns = namespace(x='ab') %}{% for a in range(99) %}BODY{% endfor %}"

ENDLESS = {
    "nested ranges": "{% for a in range(99999) %}{% for b in range(99999) %}"
    "{% endfor %}{% endfor %}",
    "recursive macro": "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    "doubling calls": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
    "{% endmacro %}{{ f(50) }}",
    "membership": "{% set b = range(99999)|list %}{% for i in range(99999) %}"
    "{% if -1 in b %}{% endif %}{% endfor %}",
    "recursive loop": "{% set ns = namespace(l=[1]) %}{% for i in range(40) %}"
    "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{% for x in ns.l recursive %}"
    "{% if x is sequence %}{{ loop(x) }}{% endif %}{% endfor %}",
}

HUGE = {
    "added": GROW.replace("BODY", "{% set ns.x = ns.x + ns.x %}"),
    "concatenated": GROW.replace("BODY", "{% set ns.x = ns.x ~ ns.x %}"),
    "block set": GROW.replace("BODY", "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
    "lists": GROW.replace("BODY", "{% set ns.x = ns.x|list + ns.x|list %}"),
    "times": "{{ 'x' * 10**9 }}",
    "times list": "{{ 10**9 * [1] }}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "squares": "{% set ns = namespace(x=3) %}{% for i in range(60) %}"
    "{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x }}",
    "center": "{{ 'x'.center(10**9) }}",
    "center filter": "{{ 'x'|center(10**9) }}",
    "batch": "{{ [1]|batch(10**9, 'x')|list }}",
    "slice": "{{ [1]|slice(10**9)|list }}",
    "indent": "{{ ('a\n' * 100000)|indent(99999) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (10**9, 1) }}",
    "format": "{{ '{:1000000000}'.format(1) }}",
    "nested format": "{{ '{:{}}'.format('x', 10**9) }}",
    "format filter": "{{ '%1000000000d'|format(1) }}",
    "zfill": "{{ '1'.zfill(10**9) }}",
    "to_bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "replace": "{% set x = 'a' * 8000000 %}{{ x.replace('a', x) }}",
    "replace filter": "{% set x = 'a' * 8000000 %}{{ x|replace('a', 'bbbbbb') }}",
    "join": "{{ range(99999)|map('string')|join('x' * 9999) }}",
    "join method": "{{ ('x' * 9999).join(range(99999)|map('string')) }}",
    "slices kept": "{% set ns = namespace(l=[]) %}{% set b = 'a' * 8000000 %}"
    "{% for i in range(9999) %}{% set ns.l = ns.l + [b[i:]] %}{% endfor %}",
    "text in a loop": "{% macro m() %}{% for i in range(99999) %}" + "y" * 5000 + "{% endfor %}"
    "{% endmacro %}{{ m() }}",
    "output": "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
}


def render(source, values=(), input_bytes=0):
    return BoundedEnvironment().render(source, dict(values), input_bytes)


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_templates_end_in_seconds(name):
    """An endless template stopped every later request."""
    began = time.monotonic()
    with pytest.raises(TemplateLimit):
        render(ENDLESS[name])
    assert time.monotonic() - began < 15  # 5 s on an idle machine


@pytest.mark.parametrize("name", HUGE)
def test_huge_values_are_refused_before_they_are_made(name):
    """A template of three lines took more than 4 GB."""
    began = time.monotonic()
    with pytest.raises((TemplateLimit, OverflowError)):
        render(HUGE[name])
    assert time.monotonic() - began < 5


def test_limits_hold_on_any_thread():
    """Limits with signals hold on the main thread only, and requests run on another."""
    errors = []

    def run():
        try:
            render(ENDLESS["nested ranges"])
        except TemplateLimit as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 2


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ namespace(_x=1) }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ lipsum() }}",
        "{% include 'x' %}",
        "{{ messages.append(1) }}",
        "{{ (''|attr('__class__')).mro }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(source):
    """Attributes of Python objects lead to the interpreter."""
    with pytest.raises((TemplateError, TypeError)):
        render(source, {"messages": []})


def test_a_template_of_many_parts_is_compiled_once():
    """A template of 20,000 characters takes longer to compile than to render."""
    environment = BoundedEnvironment()
    source = "{% for m in messages %}{{ m }}{% endfor %}" * 200
    began = time.monotonic()
    assert environment.render(source, {"messages": [1]}, 0) == "1" * 200
    first = time.monotonic() - began
    began = time.monotonic()
    environment.render(source, {"messages": [1]}, 0)
    assert time.monotonic() - began < first / 2


def test_long_conversations_stay_within_the_limits():
    """A limit that a long conversation meets would end a user's work."""
    messages = [{"role": "user", "content": "x" * 2000}] * 2000
    source = (
        "{% for m in messages %}{% set c = m.content|trim %}{% if c.startswith('<') %}?{% endif %}"
        "{{ '<' + m.role + '>' + c.split('</think>')[-1].lstrip() ~ '\n' }}{% endfor %}"
    )
    assert len(render(source, {"messages": messages}, 4_000_000)) == 2000 * 2007
