"""Chat templates for Mistral models that come with a ``tekken.json`` and no template.

For these, ``mistral_common`` builds prompts in code, depending on the version in the file. The
templates here produce the same prompts for texts and tools.
"""

from __future__ import annotations

from collections.abc import Collection

_HEAD = """\
{%- set bounds = namespace(first=-1, last=-1) %}
{%- for message in messages if message['role'] != 'system' or SYSTEM_APART %}
    {%- if message['role'] == 'user' and (loop.first or loop.previtem['role'] != 'user') %}
        {%- if bounds.first < 0 %}{% set bounds.first = loop.index0 %}{% endif %}
        {%- set bounds.last = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- set system = messages | selectattr('role', 'equalto', 'system')
    | map(attribute='content') | join('\\n\\n') %}
{{- bos_token }}
{%- for message in messages if message['role'] != 'system' or SYSTEM_APART %}
    {%- set role = message['role'] %}
    {%- if role == 'system' %}
        {{- '[SYSTEM_PROMPT]' + message['content'] + '[/SYSTEM_PROMPT]' }}
    {%- elif role == 'user' %}
        {%- if not loop.first and loop.previtem['role'] == 'user' %}
            {{- '\\n\\n' }}
        {%- else %}
            {%- if tools and loop.index0 == bounds.TOOLS_BEFORE %}
                {{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
            {%- endif %}
            {{- '[INST]' }}
            {%- if system and not SYSTEM_APART and loop.index0 == bounds.last %}
                {{- system + '\\n\\n' }}
            {%- endif %}
        {%- endif %}
        {{- message['content'] }}
        {%- if loop.last or loop.nextitem['role'] != 'user' %}
            {{- '[/INST]' }}
        {%- endif %}
    {%- elif role == 'assistant' %}
        THOUGHTS
        {{- message['content'] or '' }}
        {%- if message['tool_calls'] %}
            CALLS
        {%- endif %}
        {{- eos_token }}
    {%- elif role == 'tool' %}
        RESULT
    {%- else %}
        {{- raise_exception('messages with the role ' + role + ' are not known') }}
    {%- endif %}
{%- endfor %}
"""

_THOUGHTS = """\
{%- if message['reasoning_content'] %}
            {{- '[THINK]' + message['reasoning_content'] + '[/THINK]' }}
        {%- endif %}"""

_ARGUMENTS = """\
{%- set arguments = call['function']['arguments'] %}
                {%- set arguments = arguments if arguments is string else arguments | tojson %}"""

_CALL_LIST = f"""\
{{{{- '[TOOL_CALLS][' }}}}
            {{%- for call in message['tool_calls'] %}}
                {{#- Ids have length 9. #}}
                {_ARGUMENTS}
                {{{{- '{{"name": "' + call['function']['name'] + '", "arguments": ' + arguments }}}}
                {{{{- ', "id": "' + call['id'] + '"}}' + (']' if loop.last else ', ') }}}}
            {{%- endfor %}}"""

_CALLS_WITH_IDS = f"""\
{{%- for call in message['tool_calls'] %}}
                {{#- Ids have length 9. #}}
                {_ARGUMENTS}
                {{{{- '[TOOL_CALLS]' + call['function']['name'] + '[CALL_ID]' + call['id'] }}}}
                {{{{- '[ARGS]' + arguments }}}}
            {{%- endfor %}}"""

_CALLS = f"""\
{{%- for call in message['tool_calls'] %}}
                {_ARGUMENTS}
                {{{{- '[TOOL_CALLS]' + call['function']['name'] + '[ARGS]' + arguments }}}}
            {{%- endfor %}}"""

_JSON_RESULT = """\
{%- set content = message['content'] %}
        {%- if content | int | string == content %}
            {%- set content = content | int %}
        {%- elif content | float | string == content %}
            {%- set content = content | float %}
        {%- endif %}
        {%- set result = {'content': content, 'call_id': message['tool_call_id']} %}
        {{- '[TOOL_RESULTS]' + result | tojson + '[/TOOL_RESULTS]' }}"""

_RESULT_WITH_ID = """\
{{- '[TOOL_RESULTS]' + message['tool_call_id'] + '[TOOL_CONTENT]' }}
        {{- message['content'] + '[/TOOL_RESULTS]' }}"""

_RESULT = "{{- '[TOOL_RESULTS]' + message['content'] + '[/TOOL_RESULTS]' }}"

_VERSIONS = {
    "v3": {"CALLS": _CALL_LIST, "RESULT": _JSON_RESULT, "SYSTEM_APART": "false"},
    "v7": {"CALLS": _CALL_LIST, "RESULT": _RESULT_WITH_ID},
    "v11": {"CALLS": _CALLS_WITH_IDS, "RESULT": _RESULT_WITH_ID},
    "v13": {"CALLS": _CALLS, "RESULT": _RESULT, "TOOLS_BEFORE": "first"},
}
_DEFAULTS = {"SYSTEM_APART": "true", "TOOLS_BEFORE": "last", "THOUGHTS": ""}


def mistral_template(version: str, special_tokens: Collection[str]) -> str | None:
    """Return the template for a version of ``tekken.json``, or None if the version is unknown.

    Models with reasoning tokens get a template that writes reasoning.
    """
    if version not in _VERSIONS:
        return None
    blanks = {**_DEFAULTS, **_VERSIONS[version]}
    if "[/THINK]" in special_tokens:
        blanks["THOUGHTS"] = _THOUGHTS
    source = _HEAD
    for name, text in blanks.items():
        source = source.replace(name, text)
    return source
