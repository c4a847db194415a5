"""Assembles a program for the NES: `python assembler.py catch.asm games/Catch-Nes-v0` writes its rom.nes and rom.sha.

The processor is a 6502, with all of its documented instructions. A line of a program has a label, an instruction or a
directive, and a comment after a semicolon:

    name = 3                 a constant, which is defined before it is used
    name:                    a label, whose value is the address of the next byte
    LDA #name                an instruction; the form of its operand chooses the addressing mode
    .org $C000               the address of the next byte, in the 16 kB from $C000 on
    .byte 1, %10, $1F        bytes
    .word name               addresses, the low byte first
    .tile                    a picture of 8 x 8 pixels: 8 lines with a digit, 1 to 3, or a point for each pixel

An expression is a sum of numbers and names; `<` and `>` before it take its low and its high byte.
"""

import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PROGRAM_START, PROGRAM_BYTES, TILE_BYTES = 0xC000, 0x4000, 0x2000
HEADER = b"NES\x1a" + bytes([PROGRAM_BYTES // 0x4000, TILE_BYTES // 0x2000]) + bytes(10)
"""Header of an iNES file without a mapper: the numbers of banks, and no flags."""

_COLUMNS = ("#", "zp", "zp,X", "zp,Y", "abs", "abs,X", "abs,Y", "(zp,X)", "(zp),Y", "(abs)")
_OPERAND = """
ADC 69 65 75 -- 6D 7D 79 61 71 --  AND 29 25 35 -- 2D 3D 39 21 31 --  ASL -- 06 16 -- 0E 1E -- -- -- --
BIT -- 24 -- -- 2C -- -- -- -- --  CMP C9 C5 D5 -- CD DD D9 C1 D1 --  CPX E0 E4 -- -- EC -- -- -- -- --
CPY C0 C4 -- -- CC -- -- -- -- --  DEC -- C6 D6 -- CE DE -- -- -- --  EOR 49 45 55 -- 4D 5D 59 41 51 --
INC -- E6 F6 -- EE FE -- -- -- --  JMP -- -- -- -- 4C -- -- -- -- 6C  JSR -- -- -- -- 20 -- -- -- -- --
LDA A9 A5 B5 -- AD BD B9 A1 B1 --  LDX A2 A6 -- B6 AE -- BE -- -- --  LDY A0 A4 B4 -- AC BC -- -- -- --
LSR -- 46 56 -- 4E 5E -- -- -- --  ORA 09 05 15 -- 0D 1D 19 01 11 --  ROL -- 26 36 -- 2E 3E -- -- -- --
ROR -- 66 76 -- 6E 7E -- -- -- --  SBC E9 E5 F5 -- ED FD F9 E1 F1 --  STA -- 85 95 -- 8D 9D 99 81 91 --
STX -- 86 -- 96 8E -- -- -- -- --  STY -- 84 94 -- 8C -- -- -- -- --
"""
_ALONE = """
ASL 0A BRK 00 CLC 18 CLD D8 CLI 58 CLV B8 DEX CA DEY 88 INX E8 INY C8 LSR 4A NOP EA PHA 48 PHP 08 PLA 68 PLP 28 ROL 2A
ROR 6A RTI 40 RTS 60 SEC 38 SED F8 SEI 78 TAX AA TAY A8 TSX BA TXA 8A TXS 9A TYA 98
"""
_BRANCHES = "BCC 90 BCS B0 BEQ F0 BMI 30 BNE D0 BPL 10 BVC 50 BVS 70"


def _pairs(table: str) -> dict[str, int]:
    words = table.split()
    return {name: int(code, 16) for name, code in zip(words[::2], words[1::2], strict=True)}


def _by_mode(table: str) -> dict[tuple[str, str], int]:
    words, found = table.split(), dict[tuple[str, str], int]()
    for start in range(0, len(words), len(_COLUMNS) + 1):
        name, *codes = words[start : start + len(_COLUMNS) + 1]
        found |= {(name, mode): int(code, 16) for mode, code in zip(_COLUMNS, codes, strict=True) if code != "--"}
    return found


CODES, ALONE, BRANCHES = _by_mode(_OPERAND), _pairs(_ALONE), _pairs(_BRANCHES)
"""Opcodes: of instructions with an operand, by their addressing mode; of others; and of branches."""

_FORMS = (
    (re.compile(r"#(.+)"), "#", "#"),
    (re.compile(r"\((.+),X\)"), "(zp,X)", "(zp,X)"),
    (re.compile(r"\((.+)\),Y"), "(zp),Y", "(zp),Y"),
    (re.compile(r"\((.+)\)"), "(abs)", "(abs)"),
    (re.compile(r"(.+),X"), "zp,X", "abs,X"),
    (re.compile(r"(.+),Y"), "zp,Y", "abs,Y"),
    (re.compile(r"(.+)"), "zp", "abs"),
)
"""Forms of operands, with the addressing modes for a value of one byte and of two bytes."""


class _Fault(Exception):
    """What is wrong with a line."""


class _Assembly:
    """One pass over a program. The first pass finds the values of labels that are used before they are defined."""

    def __init__(self, names: dict[str, int], *, last: bool) -> None:
        self.names, self.program, self.tiles = names, bytearray(PROGRAM_BYTES), bytearray()
        self._last, self._address = last, PROGRAM_START

    def line(self, text: str, following: Iterator[tuple[int, str]]) -> None:
        """Assembles a line; a tile takes further ones. Raises `_Fault`."""
        text = text.partition(";")[0].strip()
        if match := re.fullmatch(r"(\w+)\s*=\s*(.+)", text):
            self.names[match[1]] = self._value(match[2])
            return
        if match := re.match(r"(\w+):\s*", text):
            self.names[match[1]] = self._address
            text = text[match.end() :]
        word, _, operand = text.partition(" ")
        match word.lower():
            case "":
                pass
            case ".org":
                self._address = self._value(operand)
            case ".byte":
                self._emit([self._value(item) for item in operand.split(",")])
            case ".word":
                for item in operand.split(","):
                    self._emit(self._value(item).to_bytes(2, "little"))
            case ".tile":
                self._tile([next(following, (0, ""))[1].strip() for _ in range(8)])
            case _:
                self._instruction(word.upper(), re.sub(r"\s+", "", operand))

    def _instruction(self, name: str, operand: str) -> None:
        if operand in ("", "A") and name in ALONE:
            self._emit([ALONE[name]])
        elif name in BRANCHES:
            distance = self._value(operand) - self._address - 2
            if self._last and not -128 <= distance < 128:
                raise _Fault(f"{operand} is {distance} bytes away, and a branch reaches 127")
            self._emit([BRANCHES[name], distance % 256])
        else:
            for form, short, long in _FORMS:
                if match := form.fullmatch(operand):
                    value = self._value(match[1])
                    mode = short if value < 256 and (name, short) in CODES else long
                    break
            if not operand or (name, mode) not in CODES:
                raise _Fault(f"there is no instruction {name} {operand}".rstrip())
            if value >= 256 and "abs" not in mode:
                raise _Fault(f"{operand} is larger than a byte")
            self._emit([CODES[name, mode], *value.to_bytes(2 if "abs" in mode else 1, "little")])

    def _value(self, expression: str) -> int:
        expression = expression.strip()
        if expression[:1] in ("<", ">"):
            value = self._value(expression[1:])
            return value % 256 if expression[0] == "<" else value // 256
        total = 0
        for sign, term in re.findall(r"([+-]?)\s*([^+\s-]+)", expression):
            total += (-1 if sign == "-" else 1) * self._term(term)
        return total

    def _term(self, term: str) -> int:
        base = {"$": 16, "%": 2}.get(term[0], 10)
        try:
            return int(term.lstrip("$%"), base)
        except ValueError:
            if term in self.names:
                return self.names[term]
            if self._last:
                raise _Fault(f"there is no name {term}") from None
            return PROGRAM_START

    def _emit(self, values: bytes | list[int]) -> None:
        start = self._address - PROGRAM_START
        if not 0 <= start <= PROGRAM_BYTES - len(values):
            raise _Fault(f"the address ${self._address:04X} is not in the program's memory")
        try:
            self.program[start : start + len(values)] = bytes(values)
        except ValueError:
            raise _Fault(f"{list(values)} has a value that is not between 0 and 255") from None
        self._address += len(values)

    def _tile(self, rows: list[str]) -> None:
        if any(not re.fullmatch(r"[.123]{8}", row) for row in rows):
            raise _Fault("a tile has 8 lines of 8 points or digits from 1 to 3")
        for plane in (1, 2):
            for row in rows:
                bits = "".join("1" if pixel != "." and int(pixel) & plane else "0" for pixel in row)
                self.tiles.append(int(bits, 2))


def assemble(source: str) -> bytes:
    """Returns the iNES file of a program. Raises `ValueError`, with the number of the line, for a fault."""
    names: dict[str, int] = {}
    for last in (False, True):
        assembly, lines = _Assembly(names, last=last), iter(enumerate(source.splitlines(), 1))
        for number, text in lines:
            try:
                assembly.line(text, lines)
            except _Fault as fault:
                raise ValueError(f"line {number}: {fault}") from None
    return HEADER + bytes(assembly.program) + bytes(assembly.tiles.ljust(TILE_BYTES, b"\0"))


def main() -> None:
    """Assembles the file of the first argument into the folder of the second one."""
    source, folder = map(Path, sys.argv[1:])
    rom = assemble(source.read_text())
    (folder / "rom.nes").write_bytes(rom)
    (folder / "rom.sha").write_text(hashlib.sha1(rom[len(HEADER) :]).hexdigest() + "\n")


if __name__ == "__main__":
    main()
