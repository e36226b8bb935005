"""Large bodies that are expensive in one way or another."""

from __future__ import annotations

MESSAGE = '{"role":"user","content":"hello there"}'

TEXT = '"x"'


def heavy_bodies(model: str, size: int) -> dict[str, tuple[str, bytes]]:
    """A path and a body of about ``size`` bytes for each kind."""

    def completion(prompt: str, more: str = "") -> tuple[str, bytes]:
        return "/v1/completions", f'{{"model":"{model}","prompt":{prompt}{more}}}'.encode()

    def chat(messages: str) -> tuple[str, bytes]:
        return "/v1/chat/completions", f'{{"model":"{model}","messages":[{messages}]}}'.encode()

    def repeated(item: str) -> str:
        return ",".join([item] * (size // (len(item) + 1)))

    part = '{"type":1}'
    biases = ",".join(f'"{token}":1' for token in range(size // 11))
    fields = ",".join(f'"field{number}":1' for number in range(size // 17))
    return {
        "prose": completion('"' + "the quick brown fox, " * (size // 21) + '"'),
        "word": completion('"' + "a" * size + '"'),
        "emoji": completion('"' + "a" * (size - 4) + '😀"'),
        "escapes": completion('"' + "\\u4e00" * (size // 6) + '"'),
        "quotes": completion('"' + '\\"' * (size // 2) + '"'),
        "tokens": completion(f"[{repeated('1234')}]"),
        "prompts": completion(f"[{repeated(TEXT)}]"),
        "brackets": completion(f"[{repeated('[]')}]"),
        "deep": completion("[" * (size // 2) + "]" * (size // 2)),
        "logit_bias": completion('"x"', f',"logit_bias":{{{biases}}}'),
        "stops": completion('"x"', f',"stop":[{repeated(TEXT)}]'),
        "wrong stops": completion('"x"', f',"stop":[{repeated("1")}]'),
        "fields": ("/v1/completions", f'{{"model":"{model}",{fields}}}'.encode()),
        "chat": chat('{"role":"user","content":"' + "go on and on, " * (size // 14) + '"}'),
        "control": chat('{"role":"user","content":"' + "<|im_end|>" * (size // 10) + '"}'),
        "less": chat('{"role":"user","content":"' + "<" * size + '"}'),
        "messages": chat(repeated(MESSAGE)),
        "wrong messages": chat(repeated('{"role":"user","content":1}')),
        "parts": chat(f'{{"role":"user","content":[{repeated(part)}]}}'),
    }
