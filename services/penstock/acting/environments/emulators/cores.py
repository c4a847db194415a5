"""The emulators of stable-retro, called cores, and their licences, of which a run informs its user.

stable-retro itself has the MIT licence. Its file LICENSES.md has the texts for most cores; the others are as their
projects state them.
"""

from dataclasses import dataclass

NON_COMMERCIAL = "non-commercial use only"


@dataclass(frozen=True, slots=True)
class Core:
    """A core with its name, the systems that it emulates, and its licence."""

    name: str
    systems: str
    licence: str


CORES = {
    "fbneo": Core("FinalBurn Neo", "arcade machines", NON_COMMERCIAL),
    "fceumm": Core("FCEUmm", "NES", "GPL-2.0"),
    "gambatte": Core("Gambatte", "Game Boy, Game Boy Color", "GPL-2.0"),
    "genesis_plus_gx": Core("Genesis Plus GX", "Genesis, Master System, Game Gear, Sega CD", NON_COMMERCIAL),
    "mednafen_pce_fast": Core("Beetle PCE Fast", "PC Engine", "GPL-2.0"),
    "mednafen_saturn": Core("Beetle Saturn", "Saturn", "GPL-2.0"),
    "melonds": Core("melonDS", "Nintendo DS", "GPL-3.0"),
    "mgba": Core("mGBA", "Game Boy Advance", "MPL-2.0"),
    "parallel_n64": Core("ParaLLEl N64", "Nintendo 64", "GPL-2.0"),
    "picodrive": Core("PicoDrive", "32X", NON_COMMERCIAL),
    "snes9x": Core("Snes9x", "SNES", NON_COMMERCIAL),
    "stella": Core("Stella", "Atari 2600", "GPL-2.0"),
}
"""Cores by the names of their libraries."""


def licence_notice(library: str) -> str:
    """Returns the line for the user about a core, which is named by its library, such as fceumm_libretro.so."""
    core = CORES.get(library.partition("_libretro")[0])
    if core is None:
        return f"its emulator {library} has a licence of its own; read it before you share or sell what you build"
    return f"licence of its emulator {core.name}: {core.licence}"
