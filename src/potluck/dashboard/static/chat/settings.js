// The settings of a conversation: system prompt, sampling, tools.

import { html, useEffect, useRef } from "../lib.js";
import { models } from "../state.js";
import { settingsProblem } from "./answers.js";
import { changeSettings, NO_SETTINGS } from "./conversations.js";

const NUMBERS = [
  { name: "temperature", title: "Temperature", hint: "0 always takes the likeliest token" },
  { name: "top_p", title: "Top p", hint: "above 0, at most 1" },
  { name: "top_k", title: "Top k", hint: "−1 keeps all tokens" },
  { name: "min_p", title: "Min p", hint: "0 to 1" },
  { name: "repetition_penalty", title: "Repetition penalty", hint: "1 is none" },
  { name: "max_tokens", title: "Longest answer", hint: "in tokens; the context ends it anyway" },
  { name: "seed", title: "Seed", hint: "the same seed gives the same text" },
];
const EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
const TOOLS_EXAMPLE = `[{"type": "function", "function": {"name": "weather",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]`;

function placeholder(name, defaults) {
  if (name === "max_tokens") return "no limit";
  if (name === "seed") return "random";
  const value = defaults?.[name];
  if (value === null) return "all tokens";
  return value === undefined ? "the model's" : String(value);
}

/** A dialog with the settings of a conversation. Changes apply to the next answer. */
export function SettingsDialog({ conversation, isOpen, onClose }) {
  const dialog = useRef(null);
  useEffect(() => {
    if (isOpen && !dialog.current.open) dialog.current.showModal();
    if (!isOpen && dialog.current.open) dialog.current.close();
  }, [isOpen]);
  const { settings } = conversation;
  const defaults = models.value.find((each) => each.id === conversation.model)?.default_sampling;
  const problem = settingsProblem(settings);
  function input(name) {
    return (event) => changeSettings(conversation.id, { ...settings, [name]: event.target.value });
  }
  return html`<dialog ref=${dialog} class="dialog settings" aria-labelledby="settings-title"
    onClose=${onClose}>
    <form method="dialog">
      <div class="row between"><h2 id="settings-title">Settings of this chat</h2>
        <button type="button" class="button quiet"
          onClick=${() => changeSettings(conversation.id, NO_SETTINGS)}>Reset</button></div>
      <label class="field"><span>System prompt</span>
        <textarea rows="4" value=${settings.system} onInput=${input("system")}
          placeholder="What the model should be and do" /></label>
      <fieldset class="fields"><legend>Sampling</legend>
        ${NUMBERS.map(({ name, title, hint }) => html`<label class="field" key=${name}>
          <span>${title}</span>
          <input inputmode="decimal" value=${settings[name]} onInput=${input(name)}
            placeholder=${placeholder(name, defaults)} aria-describedby=${`hint-${name}`}
            autocomplete="off" />
          <small id=${`hint-${name}`}>${hint}</small></label>`)}
        <label class="field"><span>Reasoning effort</span>
          <select value=${settings.reasoning_effort} onChange=${input("reasoning_effort")}
            aria-describedby="hint-effort">
            <option value="">default</option>
            ${EFFORTS.map((effort) => html`<option key=${effort} value=${effort}>${effort}</option>`)}
          </select><small id="hint-effort">for models that reason</small></label>
      </fieldset>
      <label class="field"><span>Stop texts</span>
        <textarea rows="2" class="mono" value=${settings.stop} onInput=${input("stop")}
          placeholder="One per line" /></label>
      <label class="field"><span>Tools</span>
        <textarea rows="3" class="mono" value=${settings.tools} onInput=${input("tools")}
          placeholder=${TOOLS_EXAMPLE} aria-describedby="hint-tools" />
        <small id="hint-tools">A list as JSON, as in the API. The model's calls are shown, and you
          enter their results.</small></label>
      <p class="problem" role="alert">${problem}</p>
      <div class="row end"><button type="submit" class="button primary">Done</button></div>
    </form>
  </dialog>`;
}
