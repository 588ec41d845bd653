"""Python source: names and what they refer to, attributes, brackets, branches and returns."""

# ruff: noqa: N815 methods are named after the nodes of `ast`

from __future__ import annotations

import ast
import re
import sys
import tokenize
import warnings
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from attnscope.read.files import decode_utf8, read_blocks, shown, unpacked
from attnscope.read.spans import Span
from attnscope.support.errors import AttnscopeError
from attnscope_relations.data import LinkedText, both_directions, from_word_before

_WORDS = re.compile(r"\w+|[^\w\s]")
_BRACKETS = {")": "(", "]": "[", "}": "{"}
#: Relations that are also read from the word before, where a causal model predicts the word.
_PREDICTED = ("use", "bracket")


def python_source(file: Path) -> Iterator[LinkedText]:
    """A file of Python as a text, with links that its syntax tree and its tokens have. It is never executed.

    Words are names, numbers and single signs. Links go from

    * ``use``: a name to where it was bound last (an assignment, parameter, loop, import, ``def`` or ``class``);
    * ``call``: a name that is called to the ``def`` or ``class`` of that name, in place of ``use``;
    * ``attribute``: the name after a dot to that of its object (``f`` of ``f(x).name``);
    * ``bracket``: a closing bracket to the opening one;
    * ``branch``: ``elif``, ``else``, ``except`` and ``finally`` to ``if``, ``try`` or the loop;
    * ``return``: to ``def``,

    and back; ``use`` and ``bracket`` also from the word before. A name has a link only if one binding is the right one
    on every path: the last before it in its scope, in a block around it, and not followed by another one in a loop
    around it; or, in a scope outside, the only one. Without links are therefore names that branches, loops, ``with`` or
    ``try`` may bind otherwise; names that ``:=``, patterns, ``global``, ``nonlocal``, ``del`` or ``import *`` bind;
    private names (``__x``); those in annotations and f-strings; and attributes as definitions (``self.x``).
    """
    name = shown(file)
    content = decode_utf8(b"".join(unpacked(file, read_blocks(file))), name)
    text = content.replace("\r\n", "\n").replace("\r", "\n")  # as Python reads lines
    version = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes such as "\d"
            tree = ast.parse(text)
        source = _Source(text)
        visitor = _Visitor(source)
        visitor.visit(tree)
    except SyntaxError as error:
        reason = error.msg.partition(". ")[0]  # without a guess at what was meant
        raise AttnscopeError(
            f"{name}, line {error.lineno or 1}: {version} does not parse it: {reason!r:.90}. Correct it, or leave the "
            "file out"
        ) from error
    except (RecursionError, MemoryError) as error:
        raise AttnscopeError(f"{name}: expressions are nested too deeply to be parsed. Leave the file out") from error
    links = sorted({*visitor.links, *visitor.resolved(), *source.brackets()})
    words = tuple(word.span() for word in _WORDS.finditer(text))
    before = [
        link
        for relation, query, key in links
        if relation in _PREDICTED
        for link in from_word_before(relation, query, key, words)
    ]
    if links:
        yield LinkedText(text, (*both_directions(links), *before), "", words)


Triple = tuple[str, Span, Span]


class _Source:
    """A text, with characters in place of lines and columns."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.split("\n")
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.tokens = [*tokenize.generate_tokens(StringIO(text).readline)]
        names = [token for token in self.tokens if token.type == tokenize.NAME]
        self.name_starts = [self.starts[token.start[0] - 1] + token.start[1] for token in names]
        self.names = [token.string for token in names]

    def character(self, line: int, column: int) -> int:
        """The character of a position of `ast`, whose columns are bytes."""
        before = self.lines[line - 1].encode()[:column]
        return self.starts[line - 1] + len(before.decode())

    def start(self, node: Any) -> int:
        return self.character(node.lineno, node.col_offset)

    def end(self, node: Any) -> int:
        return self.character(node.end_lineno, node.end_col_offset)

    def span(self, node: Any) -> Span:
        return self.start(node), self.end(node)

    def _name(self, at: int) -> Span:
        return self.name_starts[at], self.name_starts[at] + len(self.names[at])

    def name_from(self, start: int) -> Span:
        """The first name or keyword from some character on."""
        return self._name(bisect_left(self.name_starts, start))

    def name_before(self, end: int) -> Span:
        """The last name before some character."""
        return self._name(bisect_left(self.name_starts, end) - 1)

    def keyword(self, word: str, start: int) -> Span:
        """The first keyword that is written so, from some character on."""
        return self._name(self.names.index(word, bisect_left(self.name_starts, start)))

    def brackets(self) -> Iterator[Triple]:
        """Links from closing to opening brackets, outside of f-strings."""
        opened: list[tuple[int, str]] = []
        strings = 0  # f-strings around a token: tokens since Python 3.12
        for token in self.tokens:
            kind = tokenize.tok_name[token.type]
            strings += kind.endswith("STRING_START") - kind.endswith("STRING_END")
            at = self.starts[token.start[0] - 1] + token.start[1]
            if token.type != tokenize.OP or strings:
                continue
            if token.string in _BRACKETS.values():
                opened.append((at, token.string))
            elif token.string in _BRACKETS:
                start, _ = opened.pop()
                yield "bracket", (at, at + 1), (start, start + 1)


class _Binding(NamedTuple):
    """Where a name is bound."""

    span: Span | None  # None: bound in a way that has no links
    order: int  # of evaluation
    blocks: tuple[int, ...]  # around it, from the outermost of its scope
    is_definition: bool = False


class _Use(NamedTuple):
    """Where a name is used."""

    name: str
    span: Span
    order: int
    blocks: tuple[int, ...]
    scope: _Scope
    is_called: bool


@dataclass(eq=False)
class _Scope:
    """A module, class, function, lambda or comprehension, with the names that it binds."""

    kind: str
    outer: _Scope | None
    bindings: dict[str, list[_Binding]] = field(default_factory=dict[str, list[_Binding]])
    is_complete: bool = True  # without import *


class _Visitor(ast.NodeVisitor):
    """Reads a tree in the order of evaluation."""

    def __init__(self, source: _Source) -> None:
        self.source = source
        self.scope = _Scope("module", None)
        self.blocks: tuple[int, ...] = ()
        self.loops: set[int] = set()  # blocks that may be run again
        self.count = 0  # of blocks, bindings and uses
        self.uses: list[_Use] = []
        self.left_out: set[str] = set()  # names that other scopes may bind
        self.links: list[Triple] = []
        self.function: Span | None = None  # the def around a statement

    def number(self) -> int:
        self.count += 1
        return self.count

    # names

    def bind(self, name: str, span: Span | None, *, is_definition: bool = False) -> None:
        binding = _Binding(span, self.number(), self.blocks, is_definition)
        self.scope.bindings.setdefault(name, []).append(binding)

    def use(self, node: ast.Name, *, is_called: bool = False) -> None:
        span = self.source.span(node)
        self.uses.append(_Use(node.id, span, self.number(), self.blocks, self.scope, is_called))

    def resolved(self) -> Iterator[Triple]:
        """Links from names to what they refer to."""
        for use in self.uses:
            binding = self._binding(use)
            if binding is not None and binding.span is not None:
                yield "call" if use.is_called and binding.is_definition else "use", use.span, binding.span

    def _binding(self, use: _Use) -> _Binding | None:
        """The binding of a name that is right on every path; None if there is none."""
        is_private = use.name.startswith("__") and not use.name.endswith("__")
        scope: _Scope | None = use.scope
        while scope is not None and (use.name not in scope.bindings or self._is_hidden(scope, use)):
            scope = scope.outer
        if scope is None or not scope.is_complete or is_private or use.name in self.left_out:
            return None
        bindings = scope.bindings[use.name]
        if scope is not use.scope:  # which runs at another time
            return bindings[0] if len(bindings) == 1 else None
        earlier = [binding for binding in bindings if binding.order < use.order]
        if not earlier or earlier[-1].blocks != use.blocks[: len(earlier[-1].blocks)]:
            return None
        loops = self.loops.intersection(use.blocks[len(earlier[-1].blocks) :])
        later = (binding for binding in bindings if binding.order > use.order)
        return None if any(loops.intersection(binding.blocks) for binding in later) else earlier[-1]

    def _is_hidden(self, scope: _Scope, use: _Use) -> bool:
        """Whether a scope is that of a class, whose names functions within do not see."""
        return scope.kind == "class" and scope is not use.scope

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.use(node)
        else:
            self.bind(node.id, self.source.span(node) if isinstance(node.ctx, ast.Store) else None)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name):
            self.use(node.func, is_called=True)
        else:
            self.visit(node.func)
        self.visit_all([*node.args, *node.keywords])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.visit(node.value)
        name = self._name_of(node.value)
        if name is not None:
            self.links.append(("attribute", self.source.name_before(self.source.end(node)), name))

    def _name_of(self, node: ast.expr) -> Span | None:
        """The name of an object: that before the brackets of a call or an index."""
        while isinstance(node, ast.Call | ast.Subscript):
            node = node.func if isinstance(node, ast.Call) else node.value
        if isinstance(node, ast.Attribute):
            return self.source.name_before(self.source.end(node))
        return self.source.span(node) if isinstance(node, ast.Name) else None

    # statements that bind

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        self.visit_all(node.targets)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.use(node.target)
            self.visit(node.value)
            self.bind(node.target.id, self.source.span(node.target))
        else:
            self.visit_all([node.target, node.value])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit_all([node.value, node.target])
        elif isinstance(node.target, ast.Name):
            self.bind(node.target.id, None)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        if self.scope.kind == "comprehension":  # which binds it in a scope outside
            self.left_out.add(node.target.id)
        else:
            self.bind(node.target.id, None)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            start, end = self.source.span(alias)
            if alias.name == "*":
                self.scope.is_complete = False
            elif alias.asname is not None:
                self.bind(alias.asname, self.source.name_before(end))
            else:
                self.bind(alias.name.partition(".")[0], self.source.name_from(start))

    visit_ImportFrom = visit_Import

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        self.left_out.update(node.names)

    visit_Nonlocal = visit_Global

    def visit_MatchAs(self, node: Any) -> None:
        self.generic_visit(node)
        if node.name is not None:
            self.bind(node.name, None)

    visit_MatchStar = visit_MatchAs

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self.generic_visit(node)
        if node.rest is not None:
            self.bind(node.rest, None)

    # scopes

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.visit_all(node.decorator_list)
        self.visit_defaults(node.args)
        keyword = self.source.keyword("def", self.source.start(node))
        self.bind(node.name, self.source.name_from(keyword[1]), is_definition=True)
        self.parameters_of_type(node)
        around, self.function = self.function, keyword
        self.visit_scope("function", node.body, node.args)
        self.function = around

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit_defaults(node.args)
        self.visit_scope("function", [node.body], node.args)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.visit_all([*node.decorator_list, *node.bases, *node.keywords])
        self.parameters_of_type(node)
        self.visit_scope("class", node.body)
        keyword = self.source.keyword("class", self.source.start(node))
        self.bind(node.name, self.source.name_from(keyword[1]), is_definition=True)

    def visit_TypeAlias(self, node: Any) -> None:
        self.parameters_of_type(node)
        self.bind(node.name.id, None)

    def visit_ListComp(self, node: Any) -> None:
        self.visit(node.generators[0].iter)
        parts: list[ast.AST] = []
        for number, generator in enumerate(node.generators):
            parts += [] if number == 0 else [generator.iter]
            parts += [generator.target, *generator.ifs]
        parts += [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self.visit_scope("comprehension", parts)

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def parameters_of_type(self, node: Any) -> None:
        """Names of the parameters of a type (Python 3.12), which have a scope of their own."""
        self.left_out.update(parameter.name for parameter in getattr(node, "type_params", ()))

    def visit_defaults(self, arguments: ast.arguments) -> None:
        self.visit_all([*arguments.defaults, *(default for default in arguments.kw_defaults if default is not None)])

    def visit_scope(self, kind: str, parts: Iterable[ast.AST], arguments: ast.arguments | None = None) -> None:
        around = self.scope, self.blocks
        self.scope, self.blocks = _Scope(kind, self.scope), ()
        if arguments is not None:
            several = [arguments.vararg, arguments.kwarg]
            for one in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *filter(None, several)]:
                self.bind(one.arg, self.source.name_from(self.source.start(one)))
        self.visit_all(parts)
        self.scope, self.blocks = around

    # blocks

    def visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def visit_block(self, nodes: Iterable[ast.AST], *, is_loop: bool = False) -> None:
        """Statements that may not be run, or run again."""
        around, block = self.blocks, self.number()
        self.blocks = (*around, block)
        if is_loop:
            self.loops.add(block)
        self.visit_all(nodes)
        self.blocks = around

    def branch(self, word: str, after: ast.AST, to: Span) -> None:
        """A link from the first keyword after a node."""
        self.links.append(("branch", self.source.keyword(word, self.source.end(after)), to))

    def visit_If(self, node: ast.If, first: Span | None = None) -> None:
        self.visit(node.test)
        self.visit_block(node.body)
        start = self.source.start(node)
        first = (start, start + len("if")) if first is None else first
        if not node.orelse:
            return
        other, at = node.orelse[0], self.source.start(node.orelse[0])
        if isinstance(other, ast.If) and self.source.text.startswith("elif", at):
            self.links.append(("branch", (at, at + len("elif")), first))
            around, self.blocks = self.blocks, (*self.blocks, self.number())
            self.visit_If(other, first)
            self.blocks = around
        else:
            self.branch("else", node.body[-1], first)
            self.visit_block(node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.branch("else", node.test, self.source.keyword("if", self.source.end(node.body)))
        self.visit_all([node.test, node.body, node.orelse])

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self.visit_block([node.target, *node.body], is_loop=True)
        self._else_of_loop(node, "for")

    visit_AsyncFor = visit_For

    def visit_While(self, node: ast.While) -> None:
        self.visit_block([node.test, *node.body], is_loop=True)
        self._else_of_loop(node, "while")

    def _else_of_loop(self, node: ast.For | ast.AsyncFor | ast.While, keyword: str) -> None:
        if node.orelse:
            self.branch("else", node.body[-1], self.source.keyword(keyword, self.source.start(node)))
            self.visit_block(node.orelse)

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        parts = [part for item in node.items for part in (item.context_expr, item.optional_vars) if part is not None]
        self.visit_block([*parts, *node.body])

    visit_AsyncWith = visit_With

    def visit_Try(self, node: Any) -> None:
        start = self.source.start(node)
        first = start, start + len("try")
        self.visit_block(node.body)
        last = node.body[-1]
        for handler in node.handlers:
            start = self.source.start(handler)
            self.links.append(("branch", (start, start + len("except")), first))
            self.visit_block([handler])
            last = handler.body[-1]
        if node.orelse:
            self.branch("else", last, first)
            self.visit_block(node.orelse)
            last = node.orelse[-1]
        if node.finalbody:
            self.branch("finally", last, first)
            self.visit_all(node.finalbody)

    visit_TryStar = visit_Try

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.type is not None:
            self.visit(node.type)
            if node.name is not None:
                self.bind(node.name, self.source.name_from(self.source.keyword("as", self.source.end(node.type))[1]))
        self.visit_all(node.body)

    def visit_match_case(self, node: ast.match_case) -> None:
        self.visit_block([part for part in (node.pattern, node.guard, *node.body) if part is not None])

    def visit_Return(self, node: ast.Return) -> None:
        if self.function is not None:
            start = self.source.start(node)
            self.links.append(("return", (start, start + len("return")), self.function))
        self.generic_visit(node)

    def visit_JoinedStr(self, node: Any) -> None:
        """Nothing: before Python 3.12, what is within an f-string has no position."""

    visit_TemplateStr = visit_JoinedStr
