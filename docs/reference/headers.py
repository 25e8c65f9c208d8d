"""Headers as Doxygen reads them: a copy, line by line, whose plain comments are turned into Doxygen's.

A comment before a declaration documents it, a comment after a member documents that member, and a comment that a blank line
follows documents the header. Overloads of one name without a blank line between them share a comment. What a reader knows
from the declaration alone needs no comment (KNOWN). Namespaces `detail` and private members keep their plain comments,
which Doxygen does not read."""

import bisect
import re

# Declarations that need no comment, and what the reference says about them; None: it omits them.
KNOWN = [
    (r"\) = delete$", "Not available."),
    (r"(^|[ :])~\w+\(\)", None),
    (r"^(constexpr )?\w+\(\)( noexcept)?( = default$|$|:)", None),
    (r"^(\w+)\((const )?\1&&?( \w+)?\)", None),
    (r"^(\w+)& operator=\((const )?\1&&?( \w+)?\)", None),
    (r"\boperator==\(.*\) const = default$", "Equal if all members are."),
    (r"^(explicit )?\w+\([^)]*\bdetail::", None),
    (r"^(explicit )?\w+\(.*\)( noexcept)? :.*\{ ?\}$", "Made from these."),
    (r"^\w+(::\w+)? (begin|end)\(\)", "For range-for."),
    (r"\bfor_items\(\) const\b", "The stage for items of this type: `|` calls it."),
    (r"^using value_type =", "The type of its items, or of its value."),
    (r"^using input =", "The type of the items that it takes."),
    (r"^using output =", "The type of the items that it gives."),
    (r"^using (iterator_category|difference_type|pointer|reference|duration|rep|period|time_point) =",
     "For the standard library."),
    (r"\bis_steady = true$", "For the standard library."),
    (r"^static const option_list<.*\bvariables\(\)$", "The variable of each field: for millrace's own programs."),
    (r"^struct awaiter$|^using promise_type =", None),  # for the compiler
    (r"^friend\b|^extern template\b|^static_assert\b|^class boost::", None),
]

TOKEN = re.compile(r"""(?P<comment>//[^\n]*) | "(\\.|[^"\\\n])*" | (?<![0-9a-fA-F])'(\\.|[^'\\\n])*' | ^\#(\\\n|[^\n])*""",
                   re.M | re.X)


def without_comments(text):
    """(code, comments): the text with blanks instead of comments and directives and an x for each character of a literal,
    and the offsets of the comments."""
    code, comments = list(text), []
    for found in TOKEN.finditer(text):
        if found["comment"]:
            comments.append(found.start())
        instead = "x" if found[0][0] in "\"'" else " "
        code[found.start():found.end()] = [c if c == "\n" else instead for c in found[0]]
    return "".join(code), comments


def without_template(head):
    """A declaration without its template parameters, requirements and attributes."""
    while head.startswith("template"):
        depth, at = 0, head.index("<")
        for at in range(at, len(head)):
            depth += {"<": 1, ">": -1}.get(head[at], 0)
            if depth == 0:
                break
        head = re.sub(r"^requires( requires)?\s*\([^)]*\)\s*(\{[^}]*\})?\s*", "", head[at + 1:].lstrip())
    return re.sub(r"\[\[\w+\]\]\s*", "", head)


class Declaration:
    """The offsets [begin, end) of a declaration; of a class, end is that of its head, and closes that of all."""

    def __init__(self, code, begin, end, scope, is_class=False, closes=0):
        self.begin, self.end, self.scope, self.is_class = begin, end, scope, is_class
        self.closes = closes or end
        self.head = without_template(" ".join(code[begin:end].split()))
        self.has_comment, self.comment = False, None

    def name(self):
        called = re.search(r"(operator\b[^(]*|~?\w+)\s*\(", self.head)
        return called[1] if called else None


def kind_of(head):
    """"namespace", "detail", "class", "struct", "union" or "enum" if braces after this head have declarations in them."""
    found = re.match(r"(inline )?(namespace|class|struct|union|enum)\b(.*)", without_template(head))
    if not found or (found[2] != "namespace" and "(" in found[3]):
        return None
    return "detail" if found[2] == "namespace" and re.search(r"\bdetail\b", found[3]) else found[2]


def closing_brace(code, at):
    depth = 0
    for i in range(at, len(code)):
        depth += {"{": 1, "}": -1}.get(code[i], 0)
        if depth == 0:
            return i
    return len(code)


def declarations(code):
    """(declarations, hidden): what namespaces, classes and enumerations declare, except in namespaces detail and private
    sections; and the offsets [begin, end) of the namespaces detail."""
    found, hidden = [], []
    scopes = [("namespace", False)]  # with whether the current section is private
    begin, parentheses, at = None, 0, 0

    def note(end, **of_class):
        if begin is not None and not any(kind == "detail" or is_private for kind, is_private in scopes):
            found.append(Declaration(code, begin, end, scopes[-1][0], **of_class))

    while at < len(code):
        c = code[at]
        if begin is None and not c.isspace() and c not in "{};,":
            begin = at
        parentheses += {"(": 1, "[": 1, ")": -1, "]": -1}.get(c, 0)
        if parentheses > 0:
            pass
        elif c == ":" and begin is not None and code[begin:at] in ("public", "private", "protected"):
            scopes[-1] = (scopes[-1][0], code[begin:at] == "private")
            begin = None
        elif c == "{":
            kind = kind_of(" ".join(code[begin:at].split())) if begin is not None else None
            end = closing_brace(code, at)
            if kind:
                if kind == "detail":
                    hidden.append((at, end))
                elif kind != "namespace":
                    note(at, is_class=True, closes=end + 1)
                scopes.append((kind, kind == "class"))
                begin = None
            else:
                at = end
                if begin is not None and code[at + 1:].lstrip()[:1] not in (";", ",", ")", "{"):  # a function's body
                    note(at + 1)
                    begin = None
        elif c == "}":
            if scopes[-1][0] == "enum":
                note(at)
            scopes.pop()
            begin = None
        elif c == ";" or (c == "," and scopes[-1][0] == "enum"):
            note(at)
            begin = None
        at += 1
    return found, hidden


def escaped(words):
    """A text, for Doxygen to show as it is, with links to examples. Words in backquotes are code, and stay."""
    pieces = re.split(r"(`[^`]*`)", words)
    for i in range(0, len(pieces), 2):
        text = re.sub(r"[\\@#<>&%]", r"\\\g<0>", pieces[i])
        text = text.replace("*", "&#42;").replace("__", "&#95;&#95;").replace('"', "&quot;")
        pieces[i] = re.sub(r"\bexamples/(\w+\.cc)", r'@ref \1 "\g<0>"', text)
    return "".join(pieces)


def for_doxygen(lines):
    """The lines of a comment. Code and tables, which are indented by three, are shown as they are; lists may be as well."""
    out, in_list = [], False
    for line in lines:
        is_indented = line.startswith("   ")
        in_list = bool(re.match(r" +- ", line)) or (in_list and is_indented)
        out.append("     " + line if is_indented and not in_list else escaped(line))
    return out


class Header:
    def __init__(self, text):
        self.lines = text.split("\n")
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.code, comments = without_comments(text)
        self.column = {}  # of the comment in a line
        for offset in comments:
            line = self.line_of(offset)
            self.column[line] = offset - self.starts[line]
        self.declarations, self.hidden = declarations(self.code)
        self.declarations += [Declaration(text, macro.start(), macro.end(), "macros")
                              for macro in re.finditer(r"^#define (\\\n|[^\n])*", text, re.M)]

    def line_of(self, offset):
        return bisect.bisect_right(self.starts, offset) - 1

    def is_comment(self, line):
        """Whether a line is only a comment."""
        return line in self.column and not self.lines[line][:self.column[line]].strip()

    def comment(self, line):
        return self.lines[line][self.column[line] + 2:]

    def for_doxygen(self):
        lines = ["/// @file" if line == "#pragma once" else line for line in self.lines]
        self.turn_comments_after(lines)
        self.turn_comments_before(lines)
        self.complete(lines)
        return "\n".join(lines)

    def turn_comments_after(self, lines):
        """Comments after members, with the lines that continue them."""
        members = {self.line_of(d.end - 1): d for d in reversed(self.declarations) if not d.is_class}
        for line, d in members.items():
            column = self.column.get(line)
            if column is None or self.is_comment(line) or self.line_of(d.end) != line:
                continue
            d.has_comment = True
            while True:
                lines[line] = lines[line][:column] + "///< " + escaped(self.comment(line).strip())
                line += 1
                if not (self.is_comment(line) and self.column[line] == column):
                    break

    def turn_comments_before(self, lines):
        """Comments before declarations, and those of the header."""
        declared = {self.line_of(d.begin): d for d in reversed(self.declarations)}
        end = 0
        for begin in range(len(lines)):
            if begin < end or not self.is_comment(begin) or lines[begin].lstrip().startswith("///"):
                continue
            end = begin
            while self.is_comment(end):
                end += 1
            is_of_header = self.is_of_header(begin, end)
            if end not in declared and not is_of_header:
                continue
            words = for_doxygen([self.comment(line) for line in range(begin, end)])
            for line, text in zip(range(begin, end), words):
                lines[line] = lines[line][:self.column[line]] + "///" + text
            if end in declared:
                declared[end].has_comment, declared[end].comment = True, words
            elif begin > 0:
                lines[begin - 1] = "/// @file"

    def is_of_header(self, begin, end):
        is_alone = (begin == 0 or not self.lines[begin - 1]) and self.lines[end] in ("", "#pragma once")
        is_hidden = any(first <= self.starts[begin] < last for first, last in self.hidden)
        return is_alone and self.column[begin] == 0 and not is_hidden

    def complete(self, lines):
        """What has no comment: says what is known, repeats the comment of an overload, or omits the declaration."""
        insertions = []
        before = None
        for d in self.declarations:
            if not d.has_comment:
                known = next((k for k in KNOWN if re.search(k[0], d.head)), None)
                if known and known[1] is None:
                    after = d.closes + (1 if self.code[d.closes:d.closes + 1] == ";" else 0)
                    insertions += [(d.begin, "/** @cond */ "), (after, " /** @endcond */")]
                elif known:
                    insertions.append((d.begin, f"/** {known[1]} */ "))
                elif self.is_overload(before, d):
                    d.comment = before.comment
                    insertions.append((d.begin, f"/** {' '.join(words.strip() for words in d.comment)} */ "))
            before = d
        for offset, words in sorted(insertions, reverse=True):
            line = self.line_of(offset)
            column = offset - self.starts[line]
            lines[line] = lines[line][:column] + words + lines[line][column:]

    def is_overload(self, first, second):
        """Whether the second of two declarations is an overload of the first, with no blank line between them."""
        if first is None or not first.comment or not second.name() or first.name() != second.name():
            return False
        between = self.lines[self.line_of(first.end):self.line_of(second.begin)]
        return first.scope == second.scope and "" not in between
