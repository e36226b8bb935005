"""GLM 4.5 and later, Ling and Laguna: keys and values in separate tags.

``<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>``; GLM 4.5 and 4.6 write line
breaks between the tags, later ones do not.
"""

from __future__ import annotations

from potluck.text.tool_formats.tagged_calls import TaggedCalls

GLM = TaggedCalls(
    name="glm",
    openings=("<tool_call>",),
    call_opening="",
    name_end="",
    parameter_opening="<arg_key>",
    key_ends=("</arg_key>\n<arg_value>", "</arg_key><arg_value>"),
    parameter_close="</arg_value>",
    call_close="</tool_call>",
    before_parameter="\n",
    is_section=False,
    control_texts=(
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ),
)
