"""The assembler of `examples/nes`: instructions as in the processor's manual, and the ROM that is published."""

import hashlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest

NES = Path(__file__).parents[2] / "examples" / "nes"


def _assembler() -> Any:
    spec = importlib.util.spec_from_file_location("nes_assembler", NES / "assembler.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


assembler = _assembler()


def program(source: str, count: int) -> list[int]:
    return list(assembler.assemble(source)[16 : 16 + count])


def test_the_published_rom_is_the_assembled_program() -> None:
    rom, folder = assembler.assemble((NES / "catch.asm").read_text()), NES / "games" / "Catch-Nes-v0"
    assert rom == (folder / "rom.nes").read_bytes()
    assert hashlib.sha1(rom[16:]).hexdigest() == (folder / "rom.sha").read_text().strip()
    assert len(rom) == 16 + 16_384 + 8_192


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("LDA #$12", [0xA9, 0x12]),
        ("lda $12", [0xA5, 0x12]),
        ("LDA $12,X", [0xB5, 0x12]),
        ("LDX $12,Y", [0xB6, 0x12]),
        ("LDA $1234", [0xAD, 0x34, 0x12]),
        ("LDA $1234,X", [0xBD, 0x34, 0x12]),
        ("LDA $12 , Y", [0xB9, 0x12, 0x00]),
        ("LDA ($12,X)", [0xA1, 0x12]),
        ("LDA ($12),Y", [0xB1, 0x12]),
        ("JMP ($1234)", [0x6C, 0x34, 0x12]),
        ("JMP $12", [0x4C, 0x12, 0x00]),
        ("ASL A", [0x0A]),
        ("ASL $12", [0x06, 0x12]),
        ("RTS ; returns", [0x60]),
        ("LDA #>$1234", [0xA9, 0x12]),
        ("LDA #<$1234+2-1", [0xA9, 0x35]),
        ("here: BNE here", [0xD0, 0xFE]),
        ("BEQ there\nNOP\nthere:", [0xF0, 0x01, 0xEA]),
        ("JSR there\nthere: RTI", [0x20, 0x03, 0xC0, 0x40]),
        ("a = 3\nb = a+1\nLDA b", [0xA5, 0x04]),
        (".byte 1, %11, $41", [1, 3, 65]),
        (".word $1234, 5", [0x34, 0x12, 5, 0]),
    ],
)
def test_a_line_becomes_the_bytes_of_the_manual(line: str, expected: list[int]) -> None:
    assert program(line, len(expected)) == expected


def test_all_documented_instructions_have_their_own_code() -> None:
    codes = [*assembler.CODES.values(), *assembler.ALONE.values(), *assembler.BRANCHES.values()]
    assert len(codes) == len(set(codes)) == 151


def test_a_picture_has_two_planes() -> None:
    rom = assembler.assemble(".tile\n" + "\n".join(["1.23...."] * 8))
    assert rom[16 + 16_384 :][:16] == bytes([0b10010000] * 8 + [0b00110000] * 8)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("NOP\nLDA there", "line 2: there is no name there"),
        ("STA #1", "line 1: there is no instruction STA #1"),
        ("XYZ", "line 1: there is no instruction XYZ"),
        (".byte 256", "line 1: [256] has a value that is not between 0 and 255"),
        (".org $8000\nNOP", "line 2: the address $8000 is not in the program's memory"),
        ("start: BNE far\n.org $C100\nfar:", "line 1: far is 254 bytes away, and a branch reaches 127"),
        (".tile\n...", "line 1: a tile has 8 lines of 8 points or digits from 1 to 3"),
        ("LDA #300", "line 1: #300 is larger than a byte"),
    ],
)
def test_a_fault_is_named_with_its_line(source: str, fault: str) -> None:
    with pytest.raises(ValueError) as error:
        assembler.assemble(source)
    assert str(error.value) == fault
