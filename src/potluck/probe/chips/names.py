"""Normalize the names of devices, which drivers report in many spellings.

The rule:

1. Invalid text is removed: everything from a NUL byte on, control characters, and replacements for
   bytes that could not be decoded. Only the first ``MAX_NAME_CHARACTERS`` characters are used.
2. ``(R)``, ``(TM)``, ``(C)`` and their symbols are removed, and the revision that ``lspci`` adds.
3. Only the part in square brackets of a PCI database entry, such as ``AD102 [GeForce RTX 4090]``,
   is kept.
4. The company's name is removed from the front (``Device.make`` has it). The product line is kept,
   since people search for it: GeForce, Tesla, Radeon, Instinct, Arc, Mali, Adreno.
5. A memory size that is a separate word is removed (``24GB``, ``-80GB``), but not a MIG profile's
   (``1g.5gb``). ``probe.chips.lookup`` uses the reported name, because two chips may differ in
   their memory size alone (the 3 GB GeForce GTX 1060 has fewer cores than the 6 GB one).
6. ``with Max-Q Design`` becomes ``Max-Q``; the words ``GPU`` and ``Graphics`` are removed from the
   end of a name that has a number.
7. Well-known words are spelled as the vendor spells them: GeForce for ``geforce``, PCIe for
   ``PCIE``.

Words that distinguish chips are kept: Ti, SUPER, XTX, Laptop, Mobile, Max-Q, SXM and PCIe, MIG
profiles, and the names of generations (Ada, Blackwell).
"""

from __future__ import annotations

import re

from potluck.host.system import printable

_MARKS = re.compile(r"\((?:R|TM|C)\)|[®™©]|\(rev [0-9a-f]+\)", re.IGNORECASE)
_PRODUCT = re.compile(r".*\[([^\[\]]+)\]")
_COMPANY = re.compile(
    r"(?:NVIDIA Corporation|NVIDIA|Advanced Micro Devices,? Inc\.?|AMD|ATI|Intel Corporation|Intel"
    r"|Arm|Qualcomm) (?=\S)",
    re.IGNORECASE,
)
_MEMORY_SIZE = re.compile(r"(?<=\S)[ -]\d{1,4} ?[GM]i?B\b", re.IGNORECASE)
_MAX_Q = re.compile(r"\b(?:with )?Max-Q(?: Design)?\b", re.IGNORECASE)
_LAST_WORD = re.compile(r"(?<=\S) (?:GPU|Graphics)$", re.IGNORECASE)

_SPELLINGS = {
    word.casefold(): word
    for word in [
        *("GeForce", "Quadro", "Tesla", "TITAN", "RTX", "GTX", "GT", "Ti", "SUPER", "SXM", "PCIe"),
        *("MIG", "Laptop", "Mobile", "Ada", "Blackwell", "Generation", "Orin", "Xavier", "Tegra"),
        *("Radeon", "RX", "XT", "XTX", "GRE", "PRO", "Instinct", "Vega", "Arc", "Iris", "Xe"),
        *("UHD", "HD", "Graphics", "GPU", "Mali", "Immortalis", "Adreno"),
    ]
}


def normalize_name(reported: str) -> str:
    """Return the normalized name of a device, by the module's rules; empty if nothing is left.

    The result is printable, at most ``MAX_NAME_CHARACTERS`` long, and unchanged by a second call.
    """
    name = printable(reported)
    # Removing one part may expose another; every round that changes a name shortens it or fixes its
    # spelling.
    while (settled := _settled(name)) != name:
        name = settled
    return name


def search_key(reported: str) -> str:
    """Return a name for comparison: normalized but with its memory size, lower case, no hyphens."""
    sizes = _MEMORY_SIZE.findall(_without_marks(printable(reported)))
    text = " ".join([normalize_name(reported), *(re.sub("[ -]", "", size) for size in sizes)])
    return " ".join(re.split("[ _-]+", text)).casefold().strip()


def _without_marks(name: str) -> str:
    return _one_spaced(_MARKS.sub(" ", name))


def _settled(name: str) -> str:
    name = _without_marks(name)
    if product := _PRODUCT.fullmatch(name):
        name = product[1]
    if company := _COMPANY.match(name):
        name = name[company.end() :]
    name = _MAX_Q.sub("Max-Q", _MEMORY_SIZE.sub("", name))
    if re.search(r"\d", name):
        name = _LAST_WORD.sub("", name)
    name = re.sub("[A-Za-z]+", lambda word: _SPELLINGS.get(word[0].casefold(), word[0]), name)
    return _one_spaced(name)


def _one_spaced(text: str) -> str:
    return " ".join(text.split())
