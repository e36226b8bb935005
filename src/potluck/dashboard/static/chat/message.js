// One message of a conversation.

import { formatNumber, formatSeconds } from "../format.js";
import { Icon } from "../icons.js";
import { copyText, html, useEffect, useRef, useState } from "../lib.js";
import { Markdown } from "./markdown.js";

function CopyButton({ text }) {
  const [isCopied, setCopied] = useState(false);
  const timer = useRef(null);
  useEffect(() => () => clearTimeout(timer.current), []);
  async function copy() {
    await copyText(text);
    setCopied(true);
    timer.current = setTimeout(() => setCopied(false), 1500);
  }
  const label = isCopied ? "Copied" : "Copy this message";
  return html`<button type="button" class="icon-button" aria-label=${label} title=${label}
    onClick=${copy}><${Icon} name=${isCopied ? "check" : "copy"} /></button>`;
}

function EditForm({ text, onSend, onCancel }) {
  const [edited, setEdited] = useState(text);
  const area = useRef(null);
  useEffect(() => {
    area.current.focus();
    area.current.setSelectionRange(text.length, text.length);
  }, []);
  function submit(event) {
    event.preventDefault();
    if (edited.trim()) onSend(edited);
  }
  return html`<form class="edit" onSubmit=${submit}>
    <textarea ref=${area} aria-label="Edited message" rows=${Math.min(12, text.split("\n").length + 1)}
      value=${edited} onInput=${(event) => setEdited(event.target.value)}
      onKeyDown=${(event) => {
        if (event.key === "Escape") onCancel();
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
      }} />
    <div class="row between">
      <span class="muted small">Later messages are removed.</span>
      <span class="row">
        <button type="button" class="button quiet" onClick=${onCancel}>Cancel</button>
        <button type="submit" class="button primary" disabled=${!edited.trim()}>Send again</button>
      </span>
    </div>
  </form>`;
}

/** A message of the user. */
export function UserMessage({ message, isBusy, onResend }) {
  const [isEdited, setEdited] = useState(false);
  if (isEdited) {
    return html`<article class="message user is-edited"><h2 class="visually-hidden">You</h2>
      <${EditForm} text=${message.content} onCancel=${() => setEdited(false)}
        onSend=${(text) => { setEdited(false); onResend(text); }} /></article>`;
  }
  return html`<article class="message user">
    <h2 class="visually-hidden">You</h2>
    <div class="bubble">${message.content}</div>
    <div class="message-end">
      <${CopyButton} text=${message.content} />
      <button type="button" class="icon-button" aria-label="Edit this message"
        title="Edit this message" disabled=${isBusy}
        onClick=${() => setEdited(true)}><${Icon} name="edit" /></button>
    </div>
  </article>`;
}

/** What the user gave as the result of a tool. */
export function ToolMessage({ message }) {
  return html`<article class="message tool">
    <h2 class="visually-hidden">Result of a tool</h2>
    <details class="fold"><summary><${Icon} name="tool" />Result of a tool</summary>
      <pre tabindex="0" aria-label="Result">${message.content}</pre></details>
  </article>`;
}

function Reasoning({ message }) {
  const isThinking = message.state === "running" && message.content === "";
  return html`<details class="fold reasoning">
    <summary>${isThinking
      ? html`<span class="spinner" aria-hidden="true"></span>Thinking`
      : "Reasoning"}</summary>
    <div class="reasoning-text"><${Markdown} text=${message.reasoning} /></div>
  </details>`;
}

function prettyArguments(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function ToolCalls({ calls, canReply, onReply }) {
  const [results, setResults] = useState({});
  const isComplete = calls.every((_, index) => results[index]);
  function submit(event) {
    event.preventDefault();
    onReply(calls.map((call, index) => ({ toolCallId: call.id, content: results[index] })));
  }
  return html`<form class="tool-calls" onSubmit=${submit}>
    ${calls.map((call, index) => html`<div class="tool-call" key=${index}>
      <div class="row"><${Icon} name="tool" /><strong>${call.name}</strong></div>
      <pre tabindex="0" aria-label=${`Arguments of ${call.name}`}>${
        prettyArguments(call.arguments)}</pre>
      ${canReply && html`<input aria-label=${`Result of ${call.name}`}
        placeholder="Enter the result of this call" value=${results[index] ?? ""}
        onInput=${(event) => setResults({ ...results, [index]: event.target.value })} />`}
    </div>`)}
    ${canReply && html`<div class="row end"><button type="submit" class="button"
      disabled=${!isComplete}>Send ${calls.length === 1 ? "the result" : "the results"}</button>
    </div>`}
  </form>`;
}

const INTERRUPTIONS = new Set(["lost", "degraded"]);
const NOTICE_KINDS = { recovered: "good", rebalanced: "good", failed: "bad" };

function Notice({ notice }) {
  const kind = NOTICE_KINDS[notice.kind] ?? "warn";
  return html`<li class=${`badge-line ${kind}`}><span class="dot" aria-hidden="true"></span>
    <span>${notice.text}${notice.kind === "recovered" && " The answer continues."}</span></li>`;
}

function Stats({ message }) {
  const { stats, finish, state } = message;
  const parts = [];
  if (message.model) parts.push(html`<span class="model-name">${message.model}</span>`);
  if (stats) {
    const about = stats.isExact ? "" : "≈ ";
    if (stats.tokensPerSecond !== null) {
      parts.push(html`<span>${about}${formatNumber(stats.tokensPerSecond)} tokens/s</span>`);
    }
    parts.push(html`<span>first token ${formatSeconds(stats.firstTokenSeconds)}</span>`);
    parts.push(html`<span>${about}${formatNumber(stats.numTokens)}
      ${" "}${stats.numTokens === 1 ? "token" : "tokens"}</span>`);
    if (stats.promptTokens !== null) {
      const cached = stats.cachedTokens ? ` (${formatNumber(stats.cachedTokens)} cached)` : "";
      parts.push(html`<span>prompt ${formatNumber(stats.promptTokens)}${cached}</span>`);
    }
  }
  if (finish === "length") parts.push(html`<span>stopped at the token limit</span>`);
  if (state === "stopped") parts.push(html`<span>stopped</span>`);
  return html`<p class="stats">${parts}</p>`;
}

function workingText(message, isInterrupted) {
  if (isInterrupted) return "The answer will continue once the remaining machines have taken over.";
  return message.isWaiting ? "Waiting for the model" : "Reading the prompt";
}

/** An answer of the model. canReply: whether results of its tool calls can be sent. */
export function Answer({ message, isBusy, canReply, onRetry, onReply }) {
  const isRunning = message.state === "running";
  const isEmpty = !message.content && !message.reasoning && !message.toolCalls.length;
  const isInterrupted = INTERRUPTIONS.has(message.notices.at(-1)?.kind);
  return html`<article class="message answer" aria-busy=${isRunning}>
    <h2 class="visually-hidden">Answer</h2>
    ${message.reasoning && html`<${Reasoning} message=${message} />`}
    ${message.content && html`<${Markdown} text=${message.content} />`}
    ${message.toolCalls.length > 0 && html`<${ToolCalls} calls=${message.toolCalls}
      canReply=${canReply} onReply=${onReply} />`}
    ${message.notices.length > 0 && html`<div role="status"><ul class="answer-notices">
      ${message.notices.map((notice, index) =>
        html`<${Notice} key=${index} notice=${notice} />`)}</ul></div>`}
    ${isRunning && (isEmpty || message.isWaiting || isInterrupted) && html`<p class="working">
      <span class="spinner" aria-hidden="true"></span>${workingText(message, isInterrupted)}</p>`}
    ${message.error && html`<p class="notice bad" role="alert"><span>${message.error.message}${
      message.error.hint && ` (${message.error.hint})`}</span></p>`}
    <div class="message-end">
      <${Stats} message=${message} />
      ${!isRunning && html`<${CopyButton} text=${message.content} />
        <button type="button" class="icon-button" aria-label="Answer again" title="Answer again"
          disabled=${isBusy} onClick=${onRetry}><${Icon} name="retry" /></button>`}
    </div>
  </article>`;
}
