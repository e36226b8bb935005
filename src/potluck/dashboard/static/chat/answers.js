// Asks the model, and writes what it answers into the conversation.

import { effect, signal } from "../lib.js";
import { ApiError, errorFrom, send, serverSentEvents } from "../api.js";
import { cluster, events, recheckAccess } from "../state.js";
import { change, changeMessage, conversation, newId, save } from "./conversations.js";

const SHOW_MS = 40;
// Over a shorter time a rate says nothing.
const MIN_SECONDS = 0.05;
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed"];
const NOTICED = new Set(["lost", "degraded", "recovered", "failed", "rebalanced"]);

/** The conversations in which an answer is being written, each with what stops it. */
export const running = signal(new Map());

/** Returns why settings cannot be sent, or "". */
export function settingsProblem(settings) {
  for (const name of NUMBERS) {
    if (settings[name].trim() !== "" && !Number.isFinite(Number(settings[name]))) {
      return `${name} is not a number`;
    }
  }
  if (settings.tools.trim() !== "") {
    try {
      if (!Array.isArray(JSON.parse(settings.tools))) return "tools is not a list";
    } catch (error) {
      return `tools is not JSON: ${error.message}`;
    }
  }
  return "";
}

function sentMessage(message) {
  if (message.role === "user") return { role: "user", content: message.content };
  if (message.role === "tool") {
    return { role: "tool", tool_call_id: message.toolCallId, content: message.content };
  }
  const sent = { role: "assistant", content: message.content };
  if (message.reasoning) sent.reasoning_content = message.reasoning;
  if (message.toolCalls.length) {
    sent.tool_calls = message.toolCalls.map((call) => ({
      id: call.id, type: "function", function: { name: call.name, arguments: call.arguments },
    }));
  }
  return sent;
}

function requestBody({ model, settings, messages }) {
  const body = { model, messages: [], stream: true, stream_options: { include_usage: true } };
  if (settings.system.trim()) body.messages.push({ role: "system", content: settings.system });
  for (const message of messages) {
    const isEmpty = message.role === "assistant" && !message.content && !message.toolCalls.length;
    if (!isEmpty) body.messages.push(sentMessage(message));
  }
  for (const name of NUMBERS) {
    if (settings[name].trim() !== "") body[name] = Number(settings[name]);
  }
  const stops = settings.stop.split("\n").filter((line) => line !== "");
  if (stops.length) body.stop = stops;
  if (settings.reasoning_effort) body.reasoning_effort = settings.reasoning_effort;
  if (settings.tools.trim()) body.tools = JSON.parse(settings.tools);
  return body;
}

function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}

/** Adds a message of the user, or the results of tools, and asks for the answer. */
export function ask(id, added) {
  const { messages, title } = conversation(id);
  change(id, {
    messages: [...messages, ...added.map((message) => ({ id: newId(), ...message }))],
    title: title || titleOf(added[0].content),
  });
  return answer(id);
}

/** Replaces a message of the user, gives up what came after it, and asks again. */
export function resend(id, messageId, content) {
  const { messages } = conversation(id);
  const index = messages.findIndex((each) => each.id === messageId);
  const fields = { messages: [...messages.slice(0, index), { ...messages[index], content }] };
  if (index === 0) fields.title = titleOf(content);
  change(id, fields);
  return answer(id);
}

/** Gives up an answer and what came after it, and asks for another one. */
export function retry(id, messageId) {
  const { messages } = conversation(id);
  const index = messages.findIndex((each) => each.id === messageId);
  change(id, { messages: messages.slice(0, index) });
  return answer(id);
}

/** Stops the answer that is being written. */
export function stop(id) {
  running.value.get(id)?.abort();
}

/** Asks for an answer to the messages of a conversation, and returns when it is complete. */
async function answer(id) {
  const controller = new AbortController();
  running.value = new Map(running.value).set(id, controller);
  const asked = conversation(id);
  const written = {
    id: newId(), role: "assistant", model: asked.model, content: "", reasoning: "", toolCalls: [],
    state: "running", isWaiting: false, error: null, notices: [], stats: null, finish: null,
  };
  change(id, { messages: [...asked.messages, { ...written }], updated: Date.now() });

  let timer = null;
  function showNow() {
    clearTimeout(timer);
    timer = null;
    changeMessage(id, written.id, { ...written });
  }
  function showSoon() {
    timer ??= setTimeout(showNow, SHOW_MS);
  }
  const clock = new Clock();
  const stopWatching = watchCluster(asked.model, (notice) => {
    written.notices = [...written.notices, notice];
    showSoon();
  });
  try {
    const problem = settingsProblem(asked.settings);
    if (problem) throw new ApiError(`Settings: ${problem}`);
    const response = await send("v1/chat/completions", {
      method: "POST", body: requestBody(asked), signal: controller.signal,
    });
    await readAnswer(response, written, clock, showSoon);
    written.state = "done";
  } catch (error) {
    if (error.name === "AbortError") {
      written.state = "stopped";
    } else {
      written.state = "failed";
      if (error.status === 401) recheckAccess();
      written.error = error instanceof ApiError
        ? { message: error.message, hint: error.hint }
        : { message: "The connection to this node ended before the answer was complete.", hint: "" };
    }
  }
  stopWatching();
  written.isWaiting = false;
  written.stats = clock.stats();
  showNow();
  change(id, { updated: Date.now() });
  const others = new Map(running.value);
  others.delete(id);
  running.value = others;
  save();
}

/** Measures an answer from the moment that it is asked for. */
class Clock {
  #asked = performance.now();
  #first = null;
  #last = null;
  #numPieces = 0;
  usage = null;

  tick() {
    this.#last = performance.now();
    this.#first ??= this.#last;
    this.#numPieces += 1;
  }

  /** Without the server's count, that of pieces stands for that of tokens. */
  stats() {
    if (this.#first === null) return null;
    const numTokens = this.usage?.completion_tokens ?? this.#numPieces;
    const seconds = (this.#last - this.#first) / 1000;
    return {
      firstTokenSeconds: (this.#first - this.#asked) / 1000,
      numTokens,
      isExact: this.usage !== null,
      tokensPerSecond: numTokens > 1 && seconds >= MIN_SECONDS ? (numTokens - 1) / seconds : null,
      promptTokens: this.usage?.prompt_tokens ?? null,
      cachedTokens: this.usage?.prompt_tokens_details?.cached_tokens ?? null,
    };
  }
}

async function readAnswer(response, written, clock, show) {
  for await (const item of serverSentEvents(response)) {
    if (item.comment !== undefined) {
      written.isWaiting = true;
      show();
      continue;
    }
    if (item.data === "[DONE]") return;
    const chunk = JSON.parse(item.data);
    if (chunk.error) throw errorFrom(chunk.error);
    if (chunk.usage) clock.usage = chunk.usage;
    const [choice] = chunk.choices ?? [];
    if (!choice) continue;
    if (choice.finish_reason) written.finish = choice.finish_reason;
    if (takeDelta(written, choice.delta)) {
      clock.tick();
      written.isWaiting = false;
      written.stats = clock.stats();
      show();
    }
  }
  throw new ApiError("The connection to this node ended before the answer was complete.");
}

/** Adds what a delta brings. Returns whether it brings anything. */
function takeDelta(written, delta) {
  const { content, reasoning_content: reasoning, tool_calls: gained } = delta;
  written.content += content ?? "";
  written.reasoning += reasoning ?? "";
  for (const call of gained ?? []) {
    const known = written.toolCalls[call.index] ?? { id: "", name: "", arguments: "" };
    const calls = [...written.toolCalls];
    calls[call.index] = {
      id: call.id ?? known.id,
      name: known.name + (call.function?.name ?? ""),
      arguments: known.arguments + (call.function?.arguments ?? ""),
    };
    written.toolCalls = calls;
  }
  return Boolean(content || reasoning || gained?.length);
}

/** Calls a function for each event of the cluster that concerns the model, from now on. */
function watchCluster(model, onNotice) {
  const identity = (event) => `${event.id} ${event.time}`;
  const known = new Set(events.peek().map(identity));
  const nodes = new Set(
    (cluster.peek()?.deployments ?? []).filter((each) => each.model_id === model)
      .flatMap((each) => each.stages.map((stage) => stage.node_id)),
  );
  return effect(() => {
    for (const event of events.value) {
      if (known.has(identity(event))) continue;
      known.add(identity(event));
      const concerns = event.model_id === model ||
        (event.kind === "lost" && nodes.has(event.node_id));
      if (concerns && NOTICED.has(event.kind)) {
        onNotice({ kind: event.kind, text: event.message });
      }
    }
  });
}
