# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Where C++ source can be changed by one token or statement, and what it becomes.

A tokenizer, no parser: that operators of two sides stand between blanks and template brackets do not
is what tests/clang_format sees to. Comments, strings, preprocessor lines, attributes, assertions of both
kinds and prefetches are left as they are.
"""

import bisect
import dataclasses
import re

TOKEN = re.compile(
    r"(?P<skip>\s+|//[^\n]*|/\*.*?\*/|^[ \t]*\#(?:\\\n|[^\n])*)"
    r'|(?P<text>R"(?P<mark>[^(]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\')'
    r"|(?P<number>\d(?:'?[\w.])*)"
    r"|(?P<word>[A-Za-z_]\w*)"
    r"|(?P<operator><=>|<<=|>>=|->\*|->|\+\+|--|<<|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|::|\.\.\.|.)",
    re.DOTALL | re.MULTILINE,
)

RELATIONAL = {
    "<": ("<=", ">="),
    "<=": ("<", ">"),
    ">": (">=", "<="),
    ">=": (">", "<"),
    "==": ("!=",),
    "!=": ("==",),
}
BETWEEN = RELATIONAL | {
    "+": ("-",),
    "-": ("+",),
    "&&": ("||",),
    "||": ("&&",),
    "&": ("|",),
    "|": ("&",),
    "^": ("&",),
    "<<": (">>",),
    ">>": ("<<",),
    "+=": ("-=",),
    "-=": ("+=",),
    "|=": ("&=",),
    "&=": ("|=",),
    "^=": ("|=",),
    "<<=": (">>=",),
    ">>=": ("<<=",),
}
WORDS = {"true": ("false",), "false": ("true",), "min": ("max",), "max": ("min",)}
ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
# Statements that begin with one of these are neither plain calls nor assignments.
NO_STATEMENT = set(
    "return if else for while do switch case default break continue goto using namespace class struct"
    " enum union template typedef const constexpr static auto public private protected friend try"
    " catch throw delete new operator virtual explicit inline extern mutable assert static_assert".split()
)
# What is said in them is checked or done by the compiler, or has no effect that a test could see.
UNTOUCHED_CALLS = {"assert", "static_assert", "__builtin_prefetch", "cpu_relax", "alignas"}
TYPES = {"class", "struct", "union", "enum", "namespace"}
BEHIND_PARAMETERS = {")", "}", "const", "noexcept", "override", "final"}


@dataclasses.dataclass(frozen=True)
class Token:
    kind: str
    text: str
    at: int

    @property
    def end(self):
        return self.at + len(self.text)


@dataclasses.dataclass(frozen=True)
class Function:
    """Lines from head to closing brace."""

    first: int
    last: int
    constant: bool  # constexpr or consteval: may be evaluated by the compiler


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    column: int
    begin: int
    end: int
    old: str
    new: str
    function: Function | None  # None: at namespace or class scope

    @property
    def place(self):
        return f"{self.file}:{self.line}:{self.column}"

    @property
    def change(self):
        def short(text):
            text = " ".join(text.split())
            return text if len(text) <= 60 else text[:57] + "..."

        return f"{short(self.old)} => {short(self.new) or '(nothing)'}"

    @property
    def id(self):
        return f"{self.place} {self.change}"

    def apply(self, text):
        return text[: self.begin] + self.new + text[self.end :]


def tokens_of(text):
    tokens = []
    for match in TOKEN.finditer(text):
        kind = match.lastgroup if match.lastgroup != "mark" else "text"
        if kind == "skip":
            continue
        # Closing brackets of templates may stand together: a shift has blanks around.
        if match[0] == ">" and tokens and tokens[-1].text == ">" and tokens[-1].end == match.start():
            if text[tokens[-1].at - 1].isspace():
                tokens[-1] = Token("operator", ">>", tokens[-1].at)
                continue
        tokens.append(Token(kind, match[0], match.start()))
    return tokens


class Source:
    """One file's tokens, their brackets, and which function each belongs to."""

    def __init__(self, file, text):
        self.file = file
        self.text = text
        self.tokens = tokens_of(text)
        self.line_starts = [0] + [i + 1 for i, c in enumerate(text) if c == "\n"]
        self.partner = self._brackets()
        self.function = [None] * len(self.tokens)
        self.body_end = {}  # Function: index of its closing brace
        self._functions()
        self.untouched = self._untouched()

    def line(self, at):
        return bisect.bisect_right(self.line_starts, at)

    def word(self, index):
        return self.tokens[index].text if 0 <= index < len(self.tokens) else ""

    def _brackets(self):
        partner, open_ones = {}, []
        for index, token in enumerate(self.tokens):
            if token.kind != "operator":
                continue
            if token.text in "([{":
                open_ones.append(index)
            elif token.text in ")]}" and open_ones:
                partner[index] = open_ones.pop()
                partner[partner[index]] = index
        return partner

    def _functions(self):
        head = index = 0
        while index < len(self.tokens):
            text = self.word(index)
            if text == "{":
                words = [t.text for t in self.tokens[head:index]]
                body = "(" in words and (self.word(index - 1) in BEHIND_PARAMETERS or "->" in words)
                if body and not TYPES & set(words[:1]) and "=" not in words[: words.index("(")]:
                    self._function(head, index, self.partner[index], words)
                    index = self.partner[index]
                    head = index + 1
                elif TYPES & set(words):
                    head = index + 1
                else:  # a value in braces
                    index = self.partner[index]
            elif text in (";", "}") or (text == ":" and self.word(index - 1) in ("public", "private")):
                head = index + 1
            elif text == "(":
                index = self.partner[index]
            index += 1

    def _function(self, head, begin, end, words):
        function = Function(
            self.line(self.tokens[head].at),
            self.line(self.tokens[end].at),
            bool({"constexpr", "consteval"} & set(words)),
        )
        self.body_end[function] = end
        for index in range(begin, end):
            self.function[index] = function

    def _untouched(self):
        untouched = set()
        for index, token in enumerate(self.tokens):
            if token.text in UNTOUCHED_CALLS and self.word(index + 1) == "(":
                untouched.update(range(index, self.partner[index + 1] + 1))
            elif token.text == "[" and self.word(index + 1) == "[" and index in self.partner:
                untouched.update(range(index, self.partner[index] + 1))
        return untouched

    def mutants(self):
        found = []
        for index, token in enumerate(self.tokens):
            if index in self.untouched:
                continue
            for begin, end, new in self._changes(index, token):
                found.append(self._mutant(index, begin, end, new))
        return found

    def _mutant(self, index, begin, end, new):
        line = self.line(begin)
        return Mutant(
            file=self.file,
            line=line,
            column=begin - self.line_starts[line - 1] + 1,
            begin=begin,
            end=end,
            old=self.text[begin:end],
            new=new,
            function=self.function[index],
        )

    def _changes(self, index, token):
        if token.kind == "number":
            yield from ((token.at, token.end, new) for new in self._numbers(index, token.text))
        elif token.kind == "operator":
            yield from self._operators(index, token)
        elif token.kind == "word":
            yield from self._words(index, token)
            yield from self._statements(index, token)

    def _operators(self, index, token):
        before = self.text[token.at - 1]
        behind = self.text[token.end : token.end + 1]
        if token.text in BETWEEN and before.isspace() and behind.isspace():
            yield from ((token.at, token.end, new) for new in BETWEEN[token.text])
        elif token.text in ("++", "--") and self.function[index]:
            yield token.at, token.end, "--" if token.text == "++" else "++"
        elif token.text == "!":
            yield token.at, token.end, ""

    def _numbers(self, index, text):
        match = re.fullmatch(r"(0[xX])?([\da-fA-F']+?)([uUlLzZ]*)", text)
        if not match or (self.word(index - 1) == "=" and self.word(index - 2) in BEHIND_PARAMETERS):
            return
        value = int(match[2].replace("'", ""), 16 if match[1] else 10)
        if match[1] and value > 9:  # a mask: without its highest bit, and with the lowest changed
            changed = (value & ~(1 << (value.bit_length() - 1)), value ^ 1)
        else:
            changed = (value + 1, value - 1)
        yield from (f"{hex(v) if match[1] else v}{match[3]}" for v in changed if v >= 0)

    def _words(self, index, token):
        for new in WORDS.get(token.text, ()):
            if token.text in ("true", "false") or self.word(index - 1) == "::":
                yield token.at, token.end, new
        if token.text in ("if", "while") and self.word(index + 1) == "(":
            close = self.partner[index + 1]
            first = index + 2
            for inner in range(first, close):  # behind an initialiser
                if self.word(inner) == ";":
                    first = inner + 1
            begin, end = self.tokens[first].at, self.tokens[close - 1].end
            yield begin, end, f"!({self.text[begin:end]})"

    def _statements(self, index, token):
        function = self.function[index]
        if not function or not self._begins_statement(index):
            return
        end = self._statement_end(index)
        if end is None:
            return
        whole = token.at, self.tokens[end].end, ";"
        if token.text == "return":
            if end + 1 != self.body_end[function]:
                yield whole
        elif token.text not in NO_STATEMENT and self._calls_or_assigns(index, end):
            yield whole

    def _begins_statement(self, index):
        before = self.word(index - 1)
        if before in (";", "{", "}", "else") or (before == ":" and self._is_label(index - 1)):
            # Not what stands between the brackets of a for.
            return not self._between_round(index)
        if before == "]" and self.word(index - 2) == "]":  # behind [[likely]]
            return self.word(self.partner[index - 1] - 1) == ")"
        return before == ")" and self.word(self.partner[index - 1] - 1) in ("if", "for", "while")

    def _is_label(self, colon):
        while self.word(colon) not in (";", "{", "}", "?", "("):
            if self.word(colon) in ("case", "default"):
                return True
            colon -= 1
        return False

    def _between_round(self, index):
        for inner in range(index - 1, -1, -1):
            text = self.word(inner)
            if text in ")]}" and inner in self.partner and text == ")":
                continue
            if text == "(" and self.partner.get(inner, 0) > index:
                return True
            if text == "{" and self.partner.get(inner, 0) > index:
                return False
        return False

    def _statement_end(self, index):
        while index < len(self.tokens):
            text = self.word(index)
            if text in ("(", "[", "{"):
                index = self.partner[index]
            elif text == ";":
                return index
            elif text == "}":
                return None
            index += 1
        return None

    def _calls_or_assigns(self, index, end):
        """a.b->c[d](...) ; or the same with an assignment or ++ behind: no declaration."""
        while index < end:
            if self.tokens[index].kind != "word":
                return False
            index += 1
            while self.word(index) in ("(", "["):
                index = self.partner[index] + 1
                if index == end:
                    return True
            text = self.word(index)
            if text in ASSIGNMENTS or (text in ("++", "--") and index + 1 == end):
                return True
            if text not in ("::", ".", "->"):
                return False
            index += 1
        return False


def mutants_of(root, folders):
    """All mutants of the sources below `folders` (relative to `root`), in the order of their places."""
    found = []
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".h", ".cc"):
                name = str(path.relative_to(root))
                found += Source(name, path.read_text(encoding="utf-8")).mutants()
    return found
