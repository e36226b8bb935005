"""What a device is called: one spelling for the many in which drivers report a name.

The rule, in this order:

1. What is no text goes: everything from a NUL byte on, control characters, characters that stand
   for bytes that could not be decoded. Only the first ``MAX_CHARACTERS`` count.
2. ``(R)``, ``(TM)``, ``(C)`` and their signs go, and the revision in brackets that ``lspci`` adds.
3. Of a line of the PCI database, ``AD102 [GeForce RTX 4090]``, what is in square brackets stays.
4. The company's name goes from the front (``Device.make`` has it). The product line stays, since
   that is what people search for: GeForce, Tesla, Radeon, Instinct, Arc, Mali, Adreno.
5. A memory size that is a word of its own goes (``24GB``, ``-80GB``), but not a MIG profile's
   (``1g.5gb``). ``probe.chips`` looks at the reported name, because two chips may be told apart by
   their memory alone (the GeForce GTX 1060 of 3 GB has fewer cores than that of 6 GB).
6. ``with Max-Q Design`` becomes ``Max-Q``; the words ``GPU`` and ``Graphics`` go from the end of a
   name that has a number.
7. Well-known words are spelled as their maker does: ``geforce`` is GeForce, ``PCIE`` is PCIe.

What tells chips apart stays: Ti, SUPER, XTX, Laptop, Mobile, Max-Q, SXM and PCIe, MIG profiles, and
the words of a generation (Ada, Blackwell).
"""

from __future__ import annotations

import re

MAX_CHARACTERS = 96
"""Also NVML's own bound (NVML_DEVICE_NAME_V2_BUFFER_SIZE)."""

_MARKS = re.compile(r"\((?:R|TM|C)\)|[®™©]", re.IGNORECASE)
_REVISION = re.compile(r"\(rev [0-9a-f]+\)", re.IGNORECASE)
_PRODUCT = re.compile(r".*\[([^\[\]]*\d[^\[\]]*)\]$")
_COMPANY = re.compile(
    r"(?:NVIDIA Corporation|NVIDIA|Advanced Micro Devices,? Inc\.?|AMD|ATI|Intel Corporation|Intel"
    r"|Arm|Qualcomm) (?=\S)",
    re.IGNORECASE,
)
_MEMORY_SIZE = re.compile(r"(?<=\S)[ -]\d{1,4} ?[GM]i?B(?![\w.])", re.IGNORECASE)
_MAX_Q = re.compile(r"\bwith Max-Q Design\b", re.IGNORECASE)
_LAST_WORD = re.compile(r"(?<=\S) (?:GPU|Graphics)$", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z]+(?:(?<=SXM)\d)?", re.IGNORECASE)

_SPELLINGS = {
    word.casefold(): word
    for word in (
        "GeForce Quadro Tesla TITAN RTX GTX GT Ti SUPER Laptop Mobile Max Q SXM PCIe MIG Ada"
        " Blackwell Generation Edition Orin Xavier Tegra Radeon RX XT XTX GRE PRO Instinct Vega"
        " Intel Arc Iris Xe UHD HD Graphics GPU Mali Immortalis Adreno"
    ).split()
}


def normalize_name(reported: str) -> str:
    """The name of a device in one spelling, by the module's rule; empty if it says nothing.

    Printable, at most ``MAX_CHARACTERS`` long, and unchanged by a second call.
    """
    name = printable(reported)
    # Taking one thing out may lay another bare; every round that changes a name shortens it or
    # settles its spelling.
    while (shorter := _shortened(name)) != name:
        name = shorter
    return name


def search_key(reported: str) -> str:
    """A name for comparing: normalized, with its memory size, without case and hyphens."""
    name = printable(reported)
    sizes = [re.sub(r"[ -]", "", size) for size in _MEMORY_SIZE.findall(_MARKS.sub(" ", name))]
    words = re.split(r"[ _-]+", normalize_name(name))
    return " ".join([*words, *sizes]).casefold().strip()


def printable(reported: str, *, max_characters: int = MAX_CHARACTERS) -> str:
    """What was reported, but safe for a terminal: rule 1 alone, on one line."""
    text = reported.partition("\0")[0]
    text = "".join(
        character if character.isprintable() and character != "\ufffd" else " "
        for character in text[:max_characters]
    )
    return " ".join(text.split())


def _shortened(name: str) -> str:
    name = " ".join(_REVISION.sub(" ", _MARKS.sub(" ", name)).split())
    if product := _PRODUCT.fullmatch(name):
        name = product[1].strip()
    name = _COMPANY.sub("", name, count=1) if _COMPANY.match(name) else name
    name = _MAX_Q.sub("Max-Q", _MEMORY_SIZE.sub("", name))
    if re.search(r"\d", name):
        name = _LAST_WORD.sub("", name)
    return _WORD.sub(lambda word: _SPELLINGS.get(word[0].casefold(), word[0]), name)
