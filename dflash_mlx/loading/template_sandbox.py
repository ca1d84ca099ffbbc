"""A jinja environment for templates from checkpoints, with limits on work, memory and time.

A chat template is a program that a third party wrote. It must not know messages or tokenizers.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import Template, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from dflash_mlx.loading.template_functions import (
    TemplateDict,
    TemplateNamespace,
    raise_exception,
    to_json,
)
from dflash_mlx.loading.template_limits import (
    CALL_OPERATIONS,
    MAX_DEPTH,
    MAX_INT_ARGUMENT,
    MAX_INT_BITS,
    Budget,
    Counted,
    TemplateLimit,
    bits,
    check_format,
)

MAX_SOURCE = 1 << 20
"""Characters of a template: the longest published ones have 20,000."""

_REMEMBERED = 8
"""Compiled templates to keep: a model has one or two, and few models are open at once."""


class _Charge(NodeTransformer):
    """Wraps the expressions that loop or make values into calls of the environment."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        text = sum(len(part.data) for part in node.find_all(nodes.TemplateData))
        node.iter = _call("counted", node.iter, nodes.Const(4 * text))
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [
            part if isinstance(part, nodes.TemplateData) else _call("charged", part)
            for part in node.nodes
        ]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("charged", node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _call("charged", node) if isinstance(node.arg, nodes.Slice) else node


def _call(method: str, *arguments: nodes.Node) -> nodes.Call:
    function = nodes.EnvironmentAttribute(method)
    called = nodes.Call(function, list(arguments), [], None, None)
    called.set_lineno(arguments[0].lineno)
    return called


class _GenerationTag(Extension):
    """`{% generation %}` blocks, which mark the assistant's text for training; rendered as is."""

    tags = {"generation"}  # noqa: RUF012  jinja reads a plain set

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with transformers' functions and limits on every rendering.

    Templates that stay within the limits render as transformers renders them.
    """

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constant expressions are computed within the limits too
            extensions=[_GenerationTag, loopcontrols],
        )
        self._local = threading.local()
        self._templates: dict[str, Template] = {}
        self.globals |= {
            "raise_exception": raise_exception,
            "strftime_now": lambda form: datetime.now().strftime(form),
            "namespace": TemplateNamespace,
            "dict": TemplateDict(),
        }
        del self.globals["lipsum"]  # writes any amount of random text
        self.filters["tojson"] = to_json
        del self.filters["urlize"]  # its patterns take quadratic time, and no prompt needs links
        self.filters = {name: self._bounded(call) for name, call in self.filters.items()}
        self.tests = {name: self._bounded(call) for name, call in self.tests.items()}

    @contextmanager
    def limits(self, input_bytes: int) -> Iterator[Budget]:
        """Give the renderings inside a budget; it belongs to the calling thread."""
        self._local.budget = budget = Budget(input_bytes)
        try:
            yield budget
        finally:
            del self._local.budget

    def render(self, source: str, values: Mapping[str, Any], input_bytes: int) -> str:
        """Return the text that the template `source` writes with `values`.

        Raises:
            Exception: of any type, as templates may do anything; TemplateLimit for a limit.
        """
        if len(source) > MAX_SOURCE:
            raise TemplateLimit(f"it has {len(source):,} characters; {MAX_SOURCE:,} are allowed")
        with self.limits(input_bytes) as budget:
            pieces, n_bytes = [], 0
            for piece in self._compiled(source).generate(dict(values)):
                n_bytes += len(piece) + 1
                budget.spend(1)
                budget.fits(n_bytes)
                pieces.append(piece)
            return "".join(pieces)

    def _compiled(self, source: str) -> Template:
        """Return the compiled template; the last few are remembered."""
        template = self._templates.get(source)
        if template is None:
            if len(self._templates) >= _REMEMBERED:
                self._templates.clear()
            template = self._templates[source] = self.from_string(source)
        return template

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _Charge().visit(super()._parse(source, name, filename))
        return template

    @property
    def _budget(self) -> Budget:
        budget: Budget = self._local.budget
        return budget

    def counted(self, values: Any, text_bytes: int) -> Any:
        """Return `values` as an iterable that charges each pass of a loop."""
        return Counted(values, self._budget, text_bytes)

    def charged(self, value: Any) -> Any:
        """Return `value` after charging its size."""
        self._charge(value)
        return value

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the template: limited in depth, arguments and result."""
        if getattr(function, "__self__", None) is self:  # `counted` and `charged`
            return function(*args)
        budget = self._budget
        budget.spend(CALL_OPERATIONS)
        if isinstance(function, LoopContext) and args:  # the children of a recursive loop
            args = (self.counted(args[0], 0), *args[1:])
        if getattr(function, "__name__", "") == "join" and args:
            args = (self._listed(args[0]), *args[1:])
        self._check_arguments(function, args, kwargs)
        if budget.depth >= MAX_DEPTH:
            raise TemplateLimit(f"it nests calls deeper than {MAX_DEPTH}")
        budget.depth += 1
        try:
            result = super().call(context, function, *args, **kwargs)
        finally:
            budget.depth -= 1
        self._charge(result)
        return result

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return an attribute, as one operation."""
        self._budget.spend(1)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an item, as one operation."""
        self._budget.spend(1)
        return super().getitem(obj, argument)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute a binary operation whose result is of bounded size."""
        self._budget.spend(1)
        if operator == "*":
            for values, times in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(values, str | list | tuple):
                    self._budget.fits(max(times, 0) * sys.getsizeof(values))
        elif operator == "**":
            if bits(left) * max(1, abs(right) if isinstance(right, int) else 1) > MAX_INT_BITS:
                raise TemplateLimit("it computes too large a number")
        elif operator == "%" and isinstance(left, str):
            check_format(left, right if isinstance(right, tuple) else (right,))
        result = super().call_binop(context, operator, left, right)
        if bits(result) > MAX_INT_BITS:
            raise TemplateLimit("it computes too large a number")
        self._charge(result)
        return result

    def _charge(self, value: Any) -> None:
        if isinstance(value, str | bytes | list | tuple | dict | set):
            size = sys.getsizeof(value)
            self._budget.fits(size)
            self._budget.spend(0, size)

    def _bounded(self, function: Any) -> Callable[..., Any]:
        """Return a filter or test that is charged and whose arguments are checked."""

        @wraps(function)  # jinja's mark for functions that take the context is an attribute
        def bounded(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._local, "budget", None) is None:
                return function(*args, **kwargs)
            self._budget.spend(1 + sum(len(a) // 1000 for a in args if isinstance(a, str | list)))
            if function.__name__ == "do_join" and len(args) > 1:  # after the eval context
                args = (args[0], self._listed(args[1]), *args[2:])
            self._check_arguments(function, args, kwargs)
            result = function(*args, **kwargs)
            self._charge(result)
            return result

        return bounded

    def _listed(self, values: Any) -> Any:
        """Return a generator's values as a list, whose length can be checked."""
        if isinstance(values, str | list | tuple | dict | Undefined):
            return values
        return list(self.counted(values, 0))

    def _check_arguments(self, function: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Refuse widths and repetitions that make huge values, before they are made."""
        name = getattr(function, "__name__", "")
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if name in ("format", "do_format", "format_map"):
            texts = [text for text in (owner, *args) if isinstance(text, str)]
            for text in texts[:1]:
                check_format(text, (*args, *kwargs.values()))
            return
        values = [*args, *kwargs.values()]
        if name == "replace" or name == "do_replace":
            self._check_replace([text for text in (owner, *args) if isinstance(text, str)])
        if name == "join" or name == "do_join":
            separators = [sys.getsizeof(text) for text in (owner, *values) if isinstance(text, str)]
            count = max((len(v) for v in values if isinstance(v, list | tuple)), default=0)
            self._budget.fits(count * max(separators, default=0))
        if name in _WIDTHS or isinstance(owner, str | int | float):
            numbers = [abs(v) for v in values if isinstance(v, int)]
            if any(number > MAX_INT_ARGUMENT for number in numbers):
                raise TemplateLimit(f"it passes a number over {MAX_INT_ARGUMENT:,} to {name}")
        if name == "do_indent" and args and isinstance(args[0], str):
            width = next((v for v in values[1:] if isinstance(v, int | str)), 4)
            n_bytes = width if isinstance(width, int) else len(width)
            self._budget.fits((args[0].count("\n") + 1) * n_bytes)

    def _check_replace(self, texts: list[str]) -> None:
        if len(texts) >= 3:
            text, old, new = texts[:3]
            times = text.count(old) if old else len(text) + 1
            self._budget.fits(len(text) + times * len(new))


_WIDTHS = frozenset(
    [
        "do_center",
        "do_indent",
        "do_truncate",
        "do_wordwrap",
        "do_slice",
        "do_batch",
        "do_round",
        "do_tojson",
    ]
)
"""Filters that take a width or a count."""
