r"""How byte-level BPE families split text into words before merging.

GGUF names a family in ``tokenizer.ggml.pre``; the names and the order of the splits are those of
llama.cpp's ``src/llama-vocab.cpp``, and the patterns are those in the ``tokenizer.json`` of the
models named. Patterns use Oniguruma's syntax, as in the ``tokenizers`` library; each match becomes
a word, and so does each stretch between matches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# Qwen 3.5: combining marks belong to words.
_QWEN35 = _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(
    r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+"
)
# K-EXAONE: letters separated by single spaces are one word.
_EXAONE_MOE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
# As Qwen 2's, but line breaks are not joined to the punctuation before them.
_SEED_CODER = _QWEN2.replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+")
# Before this, digits are split off in threes from the left.
_MINICPM5 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")
_VIKING = r" ?[^(\s|.,!?…。，、।۔،)]+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Kimi K2: Chinese characters are separate words, and other words consist of GPT-4o's letters.
_KIMI_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI_K2 = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}*{_KIMI_LOWER}+{_CONTRACTION}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}+{_KIMI_LOWER}*{_CONTRACTION}|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Digits in threes from the right, before GPT-4o's pattern.
_THREES_FROM_THE_RIGHT = r"\d{1,3}(?=(?:\d{3})*\b)"
# Cased letters, as DeepSeek LLM's tokenizer.json lists them (it leaves out mathematical ones).
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ"
    "Ḁ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼ"
    "ℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿ"
    "\ufb00-\ufb06\ufb13-\ufb17Ａ-Ｚａ-ｚ"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BytePreTokenizer:
    """A way to split text into words. ``splits`` are applied in order.

    ``composes``: text is converted to normalization form C first. ``ignores_merges``: a word that
    is a vocabulary entry becomes that token regardless of the merges. ``adds_bos``: whether a text
    begins with the bos token if the file does not specify it.
    """

    splits: tuple[str, ...]
    composes: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False

    def build(self) -> PreTokenizer:
        """Build the pre-tokenizer of the ``tokenizers`` library, ending with the byte-level
        alphabet.
        """
        from tokenizers import Regex
        from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

        cuts = [Split(Regex(pattern), behavior="isolated") for pattern in self.splits]
        return Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])


_DEFAULT = BytePreTokenizer(splits=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))
_PLAIN_GPT2 = BytePreTokenizer(splits=(_GPT2,))
_SINGLE_DIGITS = BytePreTokenizer(splits=(r"\p{N}", _GPT2))
_LLAMA = BytePreTokenizer(splits=(_LLAMA3,), ignores_merges=True, adds_bos=True)
_CL100K = BytePreTokenizer(splits=(_LLAMA3,))
_O200K = BytePreTokenizer(splits=(_GPT4O,))
_GLM = BytePreTokenizer(splits=(_LLAMA3,), ignores_merges=True)
_GPT_NEOX = BytePreTokenizer(splits=(_GPT2,), composes=True)
_TINY_AYA = BytePreTokenizer(splits=(_THREES_FROM_THE_RIGHT, _GPT4O))
_DEEPSEEK3 = BytePreTokenizer(
    splits=(r"\p{N}{1,3}", r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK_V3)
)

BYTE_PRE_TOKENIZERS: dict[str, BytePreTokenizer] = {
    "default": _DEFAULT,
    "gpt-2": _PLAIN_GPT2,
    "phi-2": _PLAIN_GPT2,
    # GPT-NeoX's tokenizer.json, which these models have, composes; llama.cpp does not.
    "olmo": _GPT_NEOX,
    "mpt": _GPT_NEOX,
    "mellum": _PLAIN_GPT2,
    "trillion": _PLAIN_GPT2,
    "a.x-4.0": _PLAIN_GPT2,
    "exaone4": _PLAIN_GPT2,
    "granite-docling": _PLAIN_GPT2,
    "llama-bpe": _LLAMA,
    "llama3": _LLAMA,
    "llama-v3": _LLAMA,
    "falcon3": _LLAMA,
    "falcon-h1": _LLAMA,
    "pixtral": _LLAMA,
    "lfm2": _LLAMA,
    "midm-2.0": _LLAMA,
    "smaug-bpe": _CL100K,
    "dbrx": _CL100K,
    "chatglm-bpe": _CL100K,
    "glm4": _GLM,
    "glm5": _GLM,
    # Qwen's tokenizer.json has an NFC normalizer; the distilled models' files have none.
    "qwen2": BytePreTokenizer(splits=(_QWEN2,), composes=True),
    "deepseek-r1-qwen": BytePreTokenizer(splits=(_QWEN2,)),
    "stablelm2": BytePreTokenizer(splits=(_QWEN2,)),
    "megrez": BytePreTokenizer(splits=(_QWEN2,)),
    "kormo": BytePreTokenizer(splits=(_QWEN2,)),
    "f2llmv2": BytePreTokenizer(splits=(_QWEN2,)),
    "seed-coder": BytePreTokenizer(splits=(_SEED_CODER,)),
    "minicpm5": BytePreTokenizer(splits=(r"\p{N}{1,3}", _MINICPM5), ignores_merges=True),
    "qwen35": BytePreTokenizer(splits=(_QWEN35,), composes=True),
    "hunyuan": BytePreTokenizer(splits=(_QWEN2,)),
    "solar-open": BytePreTokenizer(splits=(_QWEN2,)),
    "exaone-moe": BytePreTokenizer(splits=(_EXAONE_MOE,)),
    "gpt-4o": _O200K,
    "llama4": _O200K,
    "kanana2": _O200K,
    "minimax-m2": _O200K,
    "tiny_aya": _TINY_AYA,
    "cohere2moe": _TINY_AYA,
    "viking": BytePreTokenizer(splits=(_VIKING, r"\p{N}")),
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "codeshell": _SINGLE_DIGITS,
    "minerva-7b": _SINGLE_DIGITS,
    "exaone": _SINGLE_DIGITS,
    "command-r": BytePreTokenizer(splits=(r"\p{N}", _GPT2), composes=True),
    "tekken": BytePreTokenizer(splits=(_TEKKEN,), ignores_merges=True, adds_bos=True),
    "deepseek-llm": BytePreTokenizer(
        splits=(
            r"[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
            r"\p{N}+",
        )
    ),
    "deepseek-coder": BytePreTokenizer(
        splits=(
            r"[\r\n]",
            r"\s?\p{L}+",
            r"\s?\p{P}+",
            r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
            r"\p{N}",
        )
    ),
    "deepseek-v3": _DEEPSEEK3,
    "kimi-k2": BytePreTokenizer(splits=(_KIMI_K2,), ignores_merges=True),
    "hunyuan-dense": _DEEPSEEK3,
}
"""Pre-tokenizers by GGUF's ``tokenizer.ggml.pre``: the names that llama.cpp's converter gives to
models of the families that Potluck supports. Those that occur only with other architectures
(falcon, bloom …) are omitted."""
