from __future__ import annotations

import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from potluck.host.system import MAX_NAME_CHARACTERS
from potluck.probe.chips.names import normalize_name, search_key

NAMES = [
    ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
    ("nvidia geforce rtx 4090", "GeForce RTX 4090"),
    ("NVIDIA GeForce RTX 4060 Laptop GPU", "GeForce RTX 4060 Laptop"),
    ("NVIDIA GeForce RTX 4060 Ti 16GB", "GeForce RTX 4060 Ti"),
    ("NVIDIA GeForce RTX 4070 Ti SUPER", "GeForce RTX 4070 Ti SUPER"),
    ("NVIDIA GeForce RTX 2080 with Max-Q Design", "GeForce RTX 2080 Max-Q"),
    ("NVIDIA GeForce GTX 1060 6GB", "GeForce GTX 1060"),
    ("NVIDIA A100-SXM4-80GB", "A100-SXM4"),
    ("NVIDIA A100-PCIE-40GB", "A100-PCIe"),
    ("NVIDIA A100 80GB PCIe", "A100 PCIe"),
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "A100-SXM4 MIG 1g.5gb"),
    ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "H100 HBM3 MIG 1g.10gb+me"),
    ("NVIDIA H100 80GB HBM3", "H100 HBM3"),
    ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada Generation"),
    (
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "RTX PRO 6000 Blackwell Workstation Edition",
    ),
    ("Tesla V100-SXM2-16GB", "Tesla V100-SXM2"),
    ("NVIDIA Graphics Device", "Graphics Device"),
    ("Orin (nvgpu)", "Orin (nvgpu)"),
    ("AMD Radeon RX 7900 XTX", "Radeon RX 7900 XTX"),
    ("AMD Radeon Pro W7900", "Radeon PRO W7900"),
    ("AMD Radeon Graphics", "Radeon Graphics"),
    ("AMD Radeon 780M Graphics", "Radeon 780M"),
    ("AMD Instinct MI250X / MI250", "Instinct MI250X / MI250"),
    ("Intel(R) Arc(TM) A770 Graphics", "Arc A770"),
    ("Intel® Iris® Xe Graphics", "Iris Xe Graphics"),
    ("Mali-G610", "Mali-G610"),
    ("ARM mali-G610", "Mali-G610"),
    ("Adreno (TM) 660", "Adreno 660"),
    ("AD102 [GeForce RTX 4090] (rev a1)", "GeForce RTX 4090"),
    ("GA104M [GeForce RTX 3070 Mobile / Max-Q]", "GeForce RTX 3070 Mobile / Max-Q"),
    ("TigerLake-LP GT2 [Iris Xe Graphics]", "Iris Xe Graphics"),
    ("  GeForce \t GTX\n 1080 \x1b[31m", "GeForce GTX 1080 [31m"),
    ("GeForce GTX 1080\x00\xff\xfe rubbish", "GeForce GTX 1080"),
    ("Tesla \udcff\ufffd T4", "Tesla T4"),
    ("Memory Tester 16GBit", "Memory Tester 16GBit"),
    ("NVIDIA", "NVIDIA"),
    ("24GB", "24GB"),
    ("", ""),
]


@pytest.mark.parametrize(("reported", "normalized"), NAMES)
def test_names_by_hand(reported: str, normalized: str) -> None:
    assert normalize_name(reported) == normalized


# Words of names and of what surrounds them, so that rules meet in every order.
WORDS = [
    *("NVIDIA", "AMD", "ATI", "Intel", "(R)", "(TM)", "((R)R)", "GPU", "Graphics", "24GB", "-80GB"),
    *("6 GB", "with", "Max-Q", "Design", "[", "]", "(rev a1)", "RTX", "4090", "MIG 1g.5gb", "\0"),
    *("geforce", "PCIE", "-", " ", "\n", "\udc80", "\ufffd", "㎇", "İ"),
]
reported_names = st.one_of(
    st.text(),
    st.text(alphabet=string.printable),
    st.lists(st.sampled_from(WORDS)).map(" ".join),
    st.lists(st.sampled_from(WORDS)).map("".join),
    st.integers(0, 200).map(lambda length: "x" * length + " 24GB GPU"),
)


@given(reported_names)
@example("(R(R)) NVIDIA NVIDIA 1 GPU GPU Graphics 1GB 2GB")
@example("x " * 200)
def test_a_name_is_settled_printable_and_bounded(reported: str) -> None:
    name = normalize_name(reported)
    assert normalize_name(name) == name
    assert name.isprintable()
    assert "\ufffd" not in name
    assert len(name) <= MAX_NAME_CHARACTERS
    assert name == " ".join(name.split())


@given(reported_names)
def test_case_does_not_matter_to_a_key(reported: str) -> None:
    ascii_only = reported.encode("ascii", "ignore").decode()
    assert search_key(ascii_only.upper()) == search_key(ascii_only.lower())


@pytest.mark.parametrize(
    ("reported", "key"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100 sxm4 80gb"),
        ("GA100 [A100 SXM4 80GB]", "a100 sxm4 80gb"),
        ("NVIDIA A100 80GB PCIe", "a100 pcie 80gb"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "a100 sxm4 mig 1g.5gb 40gb"),
        ("NVIDIA GeForce GTX 1060 3 GB", "geforce gtx 1060 3gb"),
        ("Intel(R) Arc(TM) A770 Graphics", "arc a770"),
    ],
)
def test_keys_by_hand(reported: str, key: str) -> None:
    assert search_key(reported) == key


def test_chips_of_one_name_and_two_memories_have_two_keys() -> None:
    small, large = "NVIDIA GeForce GTX 1060 3GB", "NVIDIA GeForce GTX 1060 6GB"
    assert normalize_name(small) == normalize_name(large)
    assert search_key(small) != search_key(large)
