"""A run names the licence of the emulator that it uses."""

import json
from pathlib import Path

import pytest

from penstock.acting.environments.emulators.cores import CORES, NON_COMMERCIAL, licence_notice

PAGE = Path(__file__).parents[5] / "docs" / "emulators.md"


def test_the_notice_of_a_core_has_its_name_and_licence() -> None:
    assert licence_notice("fceumm_libretro.so") == "licence of its emulator FCEUmm: GPL-2.0"
    assert licence_notice("genesis_plus_gx_libretro.dylib").endswith(f"Genesis Plus GX: {NON_COMMERCIAL}")


def test_an_unknown_core_is_said_to_have_a_licence_too() -> None:
    assert licence_notice("new_libretro.so").startswith(
        "its emulator new_libretro.so has a licence of its own; read it"
    )


def test_every_core_of_the_installed_package_is_known() -> None:
    stable_retro = pytest.importorskip("stable_retro")
    descriptions = Path(stable_retro.__file__).parent.glob("cores/*.json")
    libraries = {system["lib"] for file in descriptions for system in json.loads(file.read_text()).values()}
    assert len(libraries) > 5 and libraries <= set(CORES)


def test_the_documentation_has_every_core_with_its_licence() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    for core in CORES.values():
        assert f"| {core.name} | {core.systems} | {core.licence} |" in rows
