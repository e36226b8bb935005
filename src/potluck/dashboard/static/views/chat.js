// The view Chat: the list of conversations, the messages of one of them, and the field to write in.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib.js";
import { Icon } from "../icons.js";
import { ask, resend, retry, running, settingsProblem, stop } from "../chat/answers.js";
import {
  begin, change, current, currentId, listed, load, remove, show, storageProblem,
} from "../chat/conversations.js";
import { exportJson, exportMarkdown } from "../chat/export.js";
import { Answer, ToolMessage, UserMessage } from "../chat/message.js";
import { SettingsDialog } from "../chat/settings.js";
import { cluster, models } from "../state.js";

load();

function ConversationList({ onChoose }) {
  return html`<div class="conversation-list">
    <button type="button" class="button" onClick=${() => { begin(); onChoose(); }}>
      <${Icon} name="plus" />New chat</button>
    ${listed.value.length === 0 && html`<p class="muted small">
      Conversations are stored only in this browser.</p>`}
    <ul>${listed.value.map((each) => html`<li key=${each.id}>
      <button type="button" class="conversation" aria-current=${each.id === currentId.value}
        onClick=${() => { show(each.id); onChoose(); }}>
        <span>${each.title}</span>
        ${running.value.has(each.id) && html`<span class="spinner" aria-label="Answering"></span>`}
      </button></li>`)}</ul>
  </div>`;
}

function modelTitle(model) {
  return model.state === "ready" ? model.id : `${model.id} (${model.state})`;
}

function ModelPicker({ conversation }) {
  const known = models.value;
  const isKnown = known.some((model) => model.id === conversation.model);
  useEffect(() => {
    if (!isKnown && known.length > 0) {
      const best = known.find((model) => model.state === "ready") ?? known[0];
      change(conversation.id, { model: best.id });
    }
  }, [conversation.id, isKnown, known]);
  return html`<div class="model-picker">
    <select aria-label="Model" value=${conversation.model} disabled=${known.length === 0}
      onChange=${(event) => change(conversation.id, { model: event.target.value })}>
      ${known.length === 0 && html`<option value="">No model</option>`}
      ${known.map((model) => html`<option key=${model.id} value=${model.id}>
        ${modelTitle(model)}</option>`)}
    </select></div>`;
}

function Menu({ conversation, onDelete }) {
  const menu = useRef(null);
  const isEmpty = conversation.messages.length === 0;
  function choose(action) {
    return () => {
      menu.current.hidePopover();
      action();
    };
  }
  return html`
    <button type="button" class="icon-button" popovertarget="chat-menu" aria-label="Export or delete"
      title="Export or delete"><${Icon} name="more" /></button>
    <div ref=${menu} id="chat-menu" class="menu" popover>
      <button type="button" disabled=${isEmpty} onClick=${choose(() => exportMarkdown(conversation))}>
        Export as Markdown</button>
      <button type="button" disabled=${isEmpty}
        onClick=${choose(() => exportJson([conversation], conversation.title))}>Export as JSON</button>
      <button type="button" disabled=${listed.value.length === 0}
        onClick=${choose(() => exportJson(listed.value, "conversations"))}>
        Export all conversations</button>
      <button type="button" class="danger" disabled=${isEmpty} onClick=${choose(onDelete)}>
        Delete this conversation</button>
    </div>`;
}

function DeleteDialog({ conversation, isOpen, onClose }) {
  const dialog = useRef(null);
  useEffect(() => {
    if (isOpen && !dialog.current.open) dialog.current.showModal();
    if (!isOpen && dialog.current.open) dialog.current.close();
  }, [isOpen]);
  return html`<dialog ref=${dialog} class="dialog" aria-labelledby="delete-title" onClose=${onClose}>
    <form method="dialog" onSubmit=${() => { stop(conversation.id); remove(conversation.id); }}>
      <h2 id="delete-title">Delete this conversation?</h2>
      <p>“${conversation.title}” is kept only in this browser. It cannot be
        restored.</p>
      <div class="row end">
        <button type="button" class="button" onClick=${onClose}>Keep it</button>
        <button type="submit" class="button danger">Delete</button>
      </div>
    </form>
  </dialog>`;
}

function Composer({ conversation, isBusy, problem }) {
  const [text, setText] = useState("");
  const area = useRef(null);
  useEffect(() => {
    if (matchMedia("(pointer: fine)").matches) area.current.focus({ preventScroll: true });
  }, [conversation.id]);
  useLayoutEffect(() => {
    area.current.style.height = "auto";
    area.current.style.height = `${Math.min(area.current.scrollHeight + 2, 240)}px`;
  }, [text]);
  const canSend = text.trim() !== "" && !isBusy && problem === "" && conversation.model !== "";
  function submit(event) {
    event.preventDefault();
    if (!canSend) return;
    ask(conversation.id, [{ role: "user", content: text.trim() }]);
    setText("");
  }
  function press(event) {
    const isPlain = event.key === "Enter" && !event.shiftKey && !event.isComposing;
    if (isPlain && matchMedia("(pointer: fine)").matches) submit(event);
    if (event.key === "Escape" && isBusy) stop(conversation.id);
  }
  return html`<form class="composer" onSubmit=${submit}>
    <textarea ref=${area} rows="1" aria-label="Message" placeholder="Write a message"
      value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${press} />
    ${isBusy
      ? html`<button type="button" class="round stop" aria-label="Stop the answer"
          title="Stop the answer (Esc)" onClick=${() => stop(conversation.id)}>
          <${Icon} name="stop" /></button>`
      : html`<button type="submit" class="round" aria-label="Send" title="Send (Enter)"
          disabled=${!canSend}><${Icon} name="send" /></button>`}
  </form>`;
}

function modelProblem(conversation) {
  if (models.value.length === 0) return cluster.value ? "none" : "";
  const model = models.value.find((each) => each.id === conversation.model);
  return model && model.state !== "ready" ? `${model.state}: ${model.reason ?? ""}` : "";
}

function Welcome({ conversation }) {
  const problem = modelProblem(conversation);
  if (problem === "none") {
    return html`<div class="welcome"><h2>No model is deployed</h2>
      <p class="muted">Deploy one in the view <a href="#/models">Models</a>, or run
        ${" "}<code>potluck deploy MODEL</code> on a machine of the cluster.</p></div>`;
  }
  return html`<div class="welcome"><${Icon} name="brand" />
    <h2>${conversation.model ? `Chat with ${conversation.model}` : "Chat"}</h2>
    <p class="muted">The answer comes from the machines of this cluster. The conversation stays in
      this browser.</p></div>`;
}

function Messages({ conversation, isBusy }) {
  const box = useRef(null);
  const isAtEnd = useRef(true);
  const { id, messages } = conversation;
  useLayoutEffect(() => { isAtEnd.current = true; }, [id, messages.length]);
  useLayoutEffect(() => {
    if (isAtEnd.current) box.current.scrollTop = box.current.scrollHeight;
  }, [messages]);
  function scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    isAtEnd.current = scrollHeight - scrollTop - clientHeight < 60;
  }
  const last = messages.at(-1);
  return html`<div class="messages" ref=${box} onScroll=${scrolled} tabindex="0" role="region"
    aria-label="Messages">
    <div class="column">
      ${messages.length === 0 && html`<${Welcome} conversation=${conversation} />`}
      ${messages.map((message) => {
        if (message.role === "user") {
          return html`<${UserMessage} key=${message.id} message=${message} isBusy=${isBusy}
            onResend=${(text) => resend(id, message.id, text)} />`;
        }
        if (message.role === "tool") {
          return html`<${ToolMessage} key=${message.id} message=${message} />`;
        }
        return html`<${Answer} key=${message.id} message=${message} isBusy=${isBusy}
          canReply=${!isBusy && message === last && message.state === "done"}
          onRetry=${() => retry(id, message.id)}
          onReply=${(results) =>
            ask(id, results.map((result) => ({ role: "tool", ...result })))} />`;
      })}
    </div>
  </div>`;
}

export function ChatView() {
  const conversation = current.value;
  const [isListOpen, setListOpen] = useState(false);
  const [hasSettings, setSettings] = useState(false);
  const [isDeleting, setDeleting] = useState(false);
  const isBusy = running.value.has(conversation.id);
  const problem = settingsProblem(conversation.settings);
  const isNotReady = modelProblem(conversation);
  const numSet = Object.values(conversation.settings).filter((value) => value.trim()).length;
  return html`<div class=${`chat ${isListOpen ? "with-list" : ""}`}
    onKeyDown=${(event) => { if (event.key === "Escape") setListOpen(false); }}>
    <h1 class="visually-hidden">Chat</h1>
    <aside class="conversations" id="conversations" aria-label="Conversations">
      <${ConversationList} onChoose=${() => setListOpen(false)} />
    </aside>
    <button type="button" class="shade" tabindex="-1" aria-hidden="true"
      onClick=${() => setListOpen(false)}></button>
    <section class="thread" aria-label="Conversation">
      <div class="thread-bar">
        <button type="button" class="icon-button list-button" aria-label="Conversations"
          aria-expanded=${isListOpen} aria-controls="conversations"
          onClick=${() => setListOpen(!isListOpen)}><${Icon} name="list" /></button>
        <${ModelPicker} conversation=${conversation} />
        <div class="row thread-tools">
          <button type="button" class="button quiet"
            onClick=${() => setSettings(true)}>
            <${Icon} name="sliders" /><span class="wide-only">Settings</span>
            ${numSet > 0 && html`<span class="badge">${numSet}
              <span class="visually-hidden">changed</span></span>`}</button>
          <${Menu} conversation=${conversation} onDelete=${() => setDeleting(true)} />
        </div>
      </div>
      <${Messages} conversation=${conversation} isBusy=${isBusy} />
      <div class="column composer-area">
        ${storageProblem.value && html`<p class="notice warn" role="status">
          ${storageProblem.value}</p>`}
        ${problem && html`<p class="notice warn" role="status">Settings: ${problem}</p>`}
        ${isNotReady && isNotReady !== "none" && html`<p class="notice warn" role="status">
          The model is ${isNotReady}</p>`}
        <${Composer} conversation=${conversation} isBusy=${isBusy} problem=${problem} />
      </div>
    </section>
    <${SettingsDialog} conversation=${conversation} isOpen=${hasSettings}
      onClose=${() => setSettings(false)} />
    <${DeleteDialog} conversation=${conversation} isOpen=${isDeleting}
      onClose=${() => setDeleting(false)} />
  </div>`;
}
