"""Grammars that clients write, in Lark or GBNF: read, bounded, and written anew for the compiler.

The compiler follows references between rules recursively on its stack, and copies what one terminal refers to into
another: long chains end the process, and rules that double each other take memory without bound. It also has words of
its own, such as `%json`, that lead around the bounds of schemas. So only tokens that are known here are passed on.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from adaptspec.errors import RequestError
from adaptspec.models.grammars import library
from adaptspec.server import limits
from adaptspec.server.api.fields import quoted
from adaptspec.server.api.schemas.bounds import spelled_out

MAX_CHARACTERS = 50_000
MAX_RULES = 500
MAX_ALTERNATIVES = 1_500  # of all rules; the compiler's parser holds 2,000 at once
DEEPEST = 128  # rules that refer to each other in a chain
# Repetitions of a repetition, multiplied: `("a"{0,9}){0,9}` reads a text of `a` in as many ways, which the compiler's
# parser follows all at once.
MAX_NESTED_REPETITIONS = 1_000
_ENOUGH = 10**9

# Attributes that leave the compiler's parser able to take drafts back exactly. With `max_tokens` and `stop` it is not,
# and what the others ask for would have no effect.
ATTRIBUTES = ("capture", "lazy", "suffix")
# Patterns have no two repetitions in a row that take the same characters: a search would take quadratic time, and hold
# all other threads meanwhile.
_LARK_WORDS = re.compile(r"(?m)^[\x20\t\r\f]*(?:%llguidance\b|[!?]{0,2}start[\x20\t]*(?:\[[^\]\n]*\][\x20\t]*)?:)")
_TOKEN = re.compile(
    r"""(?P<comment> (?://|\#)[^\n]* )
      | (?P<string> "(?:\\.|[^"\\\n])*"i? )
      | (?P<regex> /(?:\\.|[^/\\\n])+/[imslux]* )
      | (?P<header> %llguidance\s*\{\s*\} )
      | (?P<directive> %(?:ignore|import)\b )
      | (?P<name> [!?]{0,2}[A-Za-z_][A-Za-z0-9_]* )
      | (?P<repeat> [*+?] | \{\s*(?:(?P<least>[0-9]{1,10})\s*)?(?:,\s*(?:(?P<most>[0-9]{1,10})\s*)?)?\} )
      | (?P<number> [0-9]{1,10} )
      | (?P<line> \n )
      | (?P<space> [\x20\t\r\f]+ )
      | (?P<mark> -> | \.\. | [:|().=,\[\]] )""",
    re.VERBOSE,
)
_NAME = re.compile(r"!?\??_?(?:[a-z][a-z0-9_]*|[A-Z][A-Z0-9_]*)")
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", '"': '"', "'": "'", "\\": "\\", "/": "/"}
_GBNF_HEAD = re.compile(r"(?m)^[\x20\t]*(?P<name>[A-Za-z0-9_-]+)[\x20\t]*::=")
_GBNF_UNICODE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8}))")


@dataclass(frozen=True)
class _Token:
    """A token of a grammar in Lark: its kind, its text as the compiler is given it, and how many bytes it spells out.

    `count` and `most`: how often a repetition repeats at least, and at most where that is bounded.
    """

    kind: str
    text: str
    size: int = 0
    count: int = 1
    most: int = 1


def lark_of(text: str, param: str) -> str:
    """A grammar in Lark or GBNF as Lark that the compiler may be given.

    Raises RequestError, with the field `param`: it cannot be read, or is too much to compile.
    """
    if len(text) > MAX_CHARACTERS:
        _refuse(param, f"has {len(text)} characters; at most {MAX_CHARACTERS} are compiled: send a smaller one")
    if _LARK_WORDS.search(text):
        tokens = list(_tokens(text, param))
    else:
        tokens = _in_place(_one_repetition_each(_tokens(_lark_of_gbnf(text, param), param)), text)
    _Rules(tokens, param).check()
    return " ".join(token.text for token in tokens).replace(" \n ", "\n") + "\n"


def _refuse(param: str, reason: str) -> NoReturn:
    raise RequestError(f"{param} {reason}", param)


def _lark_of_gbnf(text: str, param: str) -> str:
    rules = text.count("::=")
    if not rules:
        _refuse(param, "is no grammar; write Lark with a rule `start: ...`, or GBNF with a rule `root ::= ...`")
    if rules > MAX_RULES:
        _refuse(param, f"has {rules} rules; at most {MAX_RULES} are compiled: send a smaller one")
    library(param)
    convert = importlib.import_module("llguidance.gbnf_to_lark").gbnf_to_lark
    try:
        return str(convert(_GBNF_UNICODE.sub(_character, text)))
    except RecursionError:
        _refuse(param, "nests too deep; make it flatter, with rules in place of groups")
    except Exception as error:  # noqa: BLE001 - it raises bare Exception for what it cannot read
        _refuse(param, f"cannot be read as GBNF: {str(error)[:200]}; change that part of it")


def _one_repetition_each(tokens: Iterable[_Token]) -> list[_Token]:
    """Put what is repeated into a group of its own where another repetition follows, as the compiler reads one only."""
    written: list[_Token] = []
    groups: list[int] = []  # where the groups that are open begin
    start = 0  # of the last part
    for token in tokens:
        if token.kind == "repeat" and written and written[-1].kind == "repeat":
            written.insert(start, _Token("mark", "("))
            written.append(_Token("mark", ")"))
        elif token.text == "(":
            groups.append(len(written))
        elif token.text == ")" and groups:
            start = groups.pop()
        elif token.kind != "repeat":
            start = len(written)
        written.append(token)
    return written


def _in_place(tokens: Sequence[_Token], text: str) -> list[_Token]:
    """Rules in Lark on the lines on which they begin in `text`, in GBNF, so that messages name lines that a client has.

    They stay as they are where their number shows that the lines were not found.
    """
    lines = [text.count("\n", 0, head.start("name")) for head in _GBNF_HEAD.finditer(text)]
    heads = [position for position in range(len(tokens)) if _text(tokens, position + 1) == ":"]
    if len(lines) != len(heads) or len(lines) > MAX_RULES:
        return list(tokens)
    written: list[_Token] = []
    line, newline = 0, _Token("line", "\n")
    for position, token in enumerate(tokens):
        if token.kind == "line":
            continue
        if heads and position == heads[0]:
            added = max(lines[len(lines) - len(heads)] - line, int(bool(written)))
            written += [newline] * added
            line += added
            heads.pop(0)
        written.append(token)
    return written


def _character(escape: re.Match[str]) -> str:
    """A character in place of its escape, which the converter cuts where it begins with zeros."""
    code = int(escape[2] or escape[3], 16)
    written = f"\\x{code:02x}" if code < 0xA0 else chr(code) if code < 0x110000 else escape[0]
    return escape[1] + written


def _tokens(text: str, param: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            at = text[position : position + 20].split("\n", maxsplit=1)[0]
            _refuse(
                param,
                f"cannot be read as Lark in line {text.count(chr(10), 0, position) + 1}, at {quoted(at)}; it may hold "
                "rules, strings, /regular expressions/, repetitions, ranges, comments, %ignore and %import common",
            )
        position = token.end()
        if token.lastgroup not in ("comment", "space", "header"):
            yield _token(token, param)


def _token(token: re.Match[str], param: str) -> _Token:
    kind, text = str(token.lastgroup), token[0]
    if kind == "string":
        body, flag = (text[1:-2], "i") if text.endswith("i") else (text[1:-1], "")
        plain = _ESCAPE.sub(lambda escape: _unescaped(escape, param), body)
        return _Token(kind, json.dumps(plain) + flag, len(plain.encode("utf-8", "surrogatepass")))
    if kind == "regex":
        return _Token(kind, text, spelled_out(text[1 : text.rindex("/")]))
    if kind == "repeat":
        if text[0] != "{":
            return _Token(kind, text)
        least, most = token["least"], token["most"]
        if least is None and most is None:
            _refuse(param, f"has the repetition {quoted(text)}; write it as {{2}}, {{2,}} or {{2,5}}")
        count = max(1, int(least or 0))
        return _Token(kind, "".join(text.split()), count=count, most=max(count, int(most or 0)))
    if kind == "name" and not _NAME.fullmatch(text):  # the compiler would read several names
        _refuse(
            param, f"has the name {quoted(text)}; write names of rules in lower case, those of terminals in capitals"
        )
    return _Token(kind, text)


def _unescaped(escape: re.Match[str], param: str) -> str:
    code = escape[1] or escape[2] or escape[3]
    if code is not None and int(code, 16) < 0x110000:
        return chr(int(code, 16))
    if escape[4] not in _ESCAPED:
        _refuse(
            param, f"has a string with the escape {quoted(escape[0])}, which is unknown; write the character itself"
        )
    return _ESCAPED[escape[4]]


def _text(tokens: Sequence[_Token], position: int) -> str:
    return tokens[position].text if position < len(tokens) else ""


@dataclass
class _Group:
    """A group that is being read: bytes of its last part, of its branch so far, and of its longest branch.

    `nested` and `part_nested` are the most ways to repeat, of the group and of its last part.
    """

    part: int = 0
    branch: int = 0
    longest: int = 0
    nested: int = 1
    part_nested: int = 1

    def add(self, size: int, nested: int = 1) -> None:
        self.branch = min(self.branch + self.part, _ENOUGH)
        self.part, self.part_nested = size, nested
        self.nested = max(self.nested, nested)

    def repeat(self, token: _Token) -> None:
        self.part = min(self.part * token.count, _ENOUGH)
        if self.part_nested > 1 or token.most > token.count or not token.text.endswith("}"):
            self.part_nested = min(self.part_nested * token.most, _ENOUGH)
        self.nested = max(self.nested, self.part_nested)

    def end_branch(self) -> int:
        self.add(0)
        self.longest = max(self.longest, self.branch)
        self.branch = 0
        return self.longest


class _Rules:
    """The rules of a grammar, and how much each spells out with all that it refers to."""

    def __init__(self, tokens: Sequence[_Token], param: str) -> None:
        self._param = param
        self._most = limits.SCHEMA_LITERAL_BYTES
        self._alternatives = sum(token.text == "|" for token in tokens)
        self._bodies: dict[str, list[_Token]] = {}
        self._sizes: dict[str, _Size] = {}
        self._split(tokens)

    def check(self) -> None:
        """Raise RequestError for too many rules or alternatives, too long chains of rules, or too much text."""
        if len(self._bodies) > MAX_RULES:
            _refuse(self._param, f"has {len(self._bodies)} rules; at most {MAX_RULES} are compiled: send a smaller one")
        if self._alternatives > MAX_ALTERNATIVES:
            _refuse(
                self._param,
                f"has {self._alternatives} alternatives; at most {MAX_ALTERNATIVES} are compiled: join those of plain "
                "text in a regular expression",
            )
        references = {name: list(self._references(name)) for name in self._bodies}
        for members in components(references):
            self._measure(members)

    def _references(self, name: str) -> Iterator[str]:
        for token in self._bodies[name]:
            referred = token.text.lstrip("!?")
            if token.kind == "name" and referred in self._bodies:  # else the compiler says that it is missing
                yield referred

    def _split(self, tokens: Sequence[_Token]) -> None:
        """Bodies by the names of their rules. A rule begins at the beginning of a line, so no other colon is read."""
        body: list[_Token] = []
        begins, position = True, 0
        while position < len(tokens):
            token = tokens[position]
            position += 1
            if begins and token.kind == "name":
                attributes, behind = self._head(tokens, position)
                if behind > position:
                    body = self._bodies.setdefault(token.text.lstrip("!?"), [])
                    body += attributes
                    position, begins = behind, False
                    continue
            if begins and token.kind == "directive":
                body = self._bodies.setdefault(token.text, [])
            if token.text in (":", "="):
                _refuse(
                    self._param,
                    f"has {quoted(token.text)} where no rule begins; write rules as `name: ...` or `name[attribute]: "
                    "...`, each on lines of its own, without priorities and parameters",
                )
            begins = token.kind == "line"
            body.append(token)

    def _head(self, tokens: Sequence[_Token], position: int) -> tuple[list[_Token], int]:
        """What the attributes of a rule spell out, and the position behind its colon; `position` is behind its name.

        The same position is returned where no rule is defined there.
        """
        start, attributes = position, list[_Token]()
        if _text(tokens, position) == "[":
            position += 1
            while _text(tokens, position) not in ("]", "", "\n"):
                name, position = _text(tokens, position), position + 1
                if name not in ATTRIBUTES:
                    _refuse(
                        self._param,
                        f"has a rule {quoted(tokens[start - 1].text)} with the attribute {quoted(name)}; drafts can be "
                        f"checked with {', '.join(ATTRIBUTES)} only: leave it out",
                    )
                if _text(tokens, position) == "=":
                    attributes += [
                        one for one in tokens[position + 1 : position + 2] if one.kind in ("string", "regex")
                    ]
                    position += 2
                if _text(tokens, position) == ",":
                    position += 1
            position += 1
        return (attributes, position + 1) if _text(tokens, position) == ":" else ([], start)

    def _measure(self, members: Sequence[str]) -> None:
        """Measure rules that all refer to each other; those that they refer to besides have been measured.

        What comes back to itself adds nothing more. A chain may lead through all members.
        """
        sizes = [self._measured(name) for name in members]
        size = min(sum(one.size for one in sizes), _ENOUGH)
        nested = max(one.nested for one in sizes)
        levels = max(one.levels for one in sizes) + len(members)
        if levels > DEEPEST:
            _refuse(
                self._param, f"has rules that refer to each other in a chain of more than {DEEPEST}; make it flatter"
            )
        if size > self._most:
            _refuse(
                self._param,
                f"has a rule {quoted(members[0])} that spells out {size} bytes with all that it refers to; this server "
                f"takes at most {self._most}: shorten it, or repeat less",
            )
        if nested > MAX_NESTED_REPETITIONS:
            _refuse(
                self._param,
                f"has a rule {quoted(members[0])} with counted repetitions within each other, {nested} in all; at most "
                f"{MAX_NESTED_REPETITIONS} are taken: count less, write * or +, or repeat within a regular expression",
            )
        self._sizes.update(dict.fromkeys(members, _Size(size, levels, nested)))

    def _measured(self, name: str) -> _Size:
        """What a rule spells out, with rules it refers to that have been measured, and how deep those are."""
        groups, levels = [_Group()], 0
        for token in self._bodies[name]:
            group = groups[-1]
            if token.text in ("(", "["):
                groups.append(_Group())
            elif token.text in (")", "]") and len(groups) > 1:
                groups.pop()
                groups[-1].add(group.end_branch(), group.nested)
            elif token.text == "|":
                group.end_branch()
            elif token.kind == "repeat":
                group.repeat(token)
            elif token.kind == "name":
                referred = self._sizes.get(token.text.lstrip("!?"), _Size())
                levels = max(levels, referred.levels)
                # Terminals become regular expressions, which have one way to read a text.
                group.add(referred.size, referred.nested if token.text.lower() == token.text else 1)
            elif token.size:
                group.add(token.size)
        while len(groups) > 1:
            last = groups.pop()
            groups[-1].add(last.end_branch(), last.nested)
        return _Size(groups[0].end_branch(), levels, groups[0].nested)


@dataclass(frozen=True)
class _Size:
    """How much a rule spells out: bytes, how deep its references go, and how often it repeats its repetitions."""

    size: int = 0
    levels: int = 0
    nested: int = 1


def components(references: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Groups of names of which each refers to each other one, over others if need be; those referred to come first.

    Tarjan's algorithm, without recursion. All names that are referred to must be keys.
    """
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    done: set[str] = set()
    for root in references:
        waiting = [] if root in order else [(root, iter(references[root]))]
        while waiting:
            name, following = waiting[-1]
            if name not in order:
                order[name] = lowest[name] = len(order)
                path.append(name)
            for referred in following:
                if referred not in order:
                    waiting.append((referred, iter(references[referred])))
                    break
                if referred not in done:
                    lowest[name] = min(lowest[name], order[referred])
            else:
                waiting.pop()
                if waiting:
                    above = waiting[-1][0]
                    lowest[above] = min(lowest[above], lowest[name])
                if lowest[name] == order[name]:
                    start = path.index(name)
                    found = path[start:]
                    del path[start:]
                    done.update(found)
                    yield found
