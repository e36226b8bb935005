"""Chat templates in the styles of well-known families, written for these tests."""

from __future__ import annotations

LLAMA3 = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{{- 'Today: ' + strftime_now('%d %b %Y') + '\\n' if strftime_now is defined }}
{%- if tools is not none %}{{- 'tools: ' ~ tools | tojson(indent=4) }}{%- endif %}
{{- system_message ~ '<|eot_id|>' }}
{%- for message in messages %}
    {%- if message.role not in ['user', 'assistant', 'tool'] %}
        {{- raise_exception('unknown role ' + message.role) }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

CHATML = """{%- if messages[0].role != 'system' %}
<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}
{% set ns = namespace(last=-1) %}
{% for message in messages %}
    {% if message.role == 'user' and not message.content.startswith('<tool') %}
        {% set ns.last = loop.index0 %}
    {% endif %}
{% endfor %}
{% for message in messages %}
    {% set content = message.content %}
    {% if message.role == 'assistant' and '</think>' in content and loop.index0 < ns.last %}
        {% set content = content.split('</think>')[-1].lstrip('\\n') %}
    {% endif %}
{{ '<|im_start|>' ~ message.role ~ '\\n' ~ content ~ '<|im_end|>' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}
"""

MISTRAL = """{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate: user, assistant, user, assistant') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.first and system_message is defined %}
            {{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}
        {%- else %}
            {{- ' [INST] ' + message['content'] + ' [/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {% generation %}{{- ' ' + message['content'] + eos_token }}{% endgeneration %}
    {%- else %}
        {%- continue %}
    {%- endif %}
{%- endfor %}
"""

QWEN3 = """{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- set thoughts = '' %}
        {%- if '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
            {%- set thoughts = thoughts.lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.last or thoughts %}
            {{- '<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content.lstrip('\\n') + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""Writes the last answer's thoughts, and an empty block of them where it has none."""

NAMED = """{{- bos_token }}
{%- for message in messages %}
    {{- '<start_of_turn>' ~ ('model' if message.role == 'assistant' else message.role) }}
    {{- ' ' ~ message.name if message.name is defined }}
    {{- '\\n' ~ message.content | trim ~ '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}
"""
"""Trims contents, and writes the names that messages have."""
