// OpenAI's client for Node: reports as programs/cases.py says.

import { readFileSync } from "node:fs";

import OpenAI from "openai";

const [url, casesPath] = process.argv.slice(2);
const { model, prompt, question, schema, tool, description, result, max_tokens } =
  JSON.parse(readFileSync(casesPath, "utf8"));
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });

async function streamed() {
  const asked = {
    model,
    messages: [{ role: "user", content: prompt }],
    max_completion_tokens: max_tokens,
    temperature: 0,
  };
  const whole = await client.chat.completions.create(asked);
  let text = "";
  for await (const chunk of client.chat.completions.stream(asked)) {
    text += chunk.choices[0]?.delta?.content ?? "";
  }
  return { whole: whole.choices[0].message.content, streamed: text };
}

async function calledTool() {
  const messages = [{ role: "user", content: question }];
  const tools = [
    { type: "function", function: { name: tool, description, parameters: schema } },
  ];
  const asked = { model, tools, parallel_tool_calls: false };
  const stream = client.chat.completions.stream({ ...asked, messages, tool_choice: "required" });
  const final = await stream.finalChatCompletion();
  const { message, finish_reason } = final.choices[0];
  if (finish_reason !== "tool_calls") throw new Error(JSON.stringify(final));
  const [call] = message.tool_calls;
  const answer = await client.chat.completions.create({
    ...asked,
    messages: [...messages, message, { role: "tool", tool_call_id: call.id, content: result }],
    tool_choice: "none",
    max_tokens,
  });
  return {
    name: call.function.name,
    arguments: JSON.parse(call.function.arguments),
    answer: answer.choices[0].message.content,
  };
}

async function ofSchema() {
  const answer = await client.chat.completions.parse({
    model,
    messages: [{ role: "user", content: question }],
    response_format: { type: "json_schema", json_schema: { name: "weather", schema, strict: true } },
  });
  return answer.choices[0].message.parsed;
}

async function responsesStreamed() {
  const asked = { model, input: prompt, max_output_tokens: max_tokens, temperature: 0 };
  const whole = await client.responses.create(asked);
  let text = "";
  for await (const event of client.responses.stream(asked)) {
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  return { whole: whole.output_text, streamed: text };
}

async function responsesTool() {
  const tools = [{ type: "function", name: tool, description, parameters: schema, strict: true }];
  const stream = client.responses.stream({
    model,
    input: question,
    tools,
    tool_choice: "required",
    parallel_tool_calls: false,
  });
  const final = await stream.finalResponse();
  const call = final.output.find((item) => item.type === "function_call");
  const answer = await client.responses.create({
    model,
    previous_response_id: final.id,
    input: [{ type: "function_call_output", call_id: call.call_id, output: result }],
    max_output_tokens: max_tokens,
  });
  return { name: call.name, arguments: JSON.parse(call.arguments), answer: answer.output_text };
}

const found = {};
const cases = {
  streamed,
  tool: calledTool,
  schema: ofSchema,
  responses_streamed: responsesStreamed,
  responses_tool: responsesTool,
};
for (const [name, run] of Object.entries(cases)) {
  try {
    found[name] = { value: await run() };
  } catch (error) {
    found[name] = { error: String(error.stack ?? error) };
  }
}
console.log(JSON.stringify(found));
