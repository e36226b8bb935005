// The Events view: what happened in the cluster and why, newest first, with a filter.

import { html, signal } from "../lib.js";
import { events } from "../state.js";
import { nameOf } from "./cluster_model.js";
import { ALL, choices, filtered, kindText, kindTone, nodesOf } from "./event_list.js";
import { count, formatPercent, formatSeconds, formatTime } from "../format.js";
import { namesOfNodes } from "./names.js";
import { State } from "./parts.js";

const NO_FILTER = { kind: ALL, modelId: ALL, nodeId: ALL, search: "" };
const MOST = 300; // rows that are drawn at once

const filter = signal(NO_FILTER);

export function EventsView() {
  const all = events.value;
  const names = namesOfNodes.value;
  const shown = filtered(all, filter.value, names);
  const options = choices(all);
  const change = (field) => (event) => {
    filter.value = { ...filter.value, [field]: event.currentTarget.value };
  };
  const isFiltered = Object.values(filter.value).some((value) => value !== ALL);
  return html`<section class="view events-view" aria-labelledby="events-title">
    <h1 id="events-title">Events</h1>
    <form class="filters" onSubmit=${(event) => event.preventDefault()} aria-label="Filter">
      <${Select}
        label="Kind"
        value=${filter.value.kind}
        onChange=${change("kind")}
        options=${options.kinds.map((kind) => [kind, kindText(kind)])}
      />
      <${Select}
        label="Model"
        value=${filter.value.modelId}
        onChange=${change("modelId")}
        options=${options.modelIds.map((modelId) => [modelId, modelId])}
      />
      <${Select}
        label="Node"
        value=${filter.value.nodeId}
        onChange=${change("nodeId")}
        options=${options.nodeIds.map((nodeId) => [nodeId, nameOf(names, nodeId)])}
      />
      <label class="field">
        <span>Text</span>
        <input type="search" value=${filter.value.search} onInput=${change("search")} />
      </label>
      <button
        type="button"
        class="button"
        disabled=${!isFiltered}
        onClick=${() => {
          filter.value = NO_FILTER;
        }}
      >
        Clear
      </button>
    </form>
    <p role="status" class="note">
      ${isFiltered ? `${shown.length} of ` : ""}${count(all.length, "event")}
      ${shown.length > MOST ? `; the newest ${MOST} are shown` : ""}
    </p>
    ${all.length === 0
      ? html`<p>Nothing has happened since this node started.</p>`
      : html`<ol class="events">
          ${shown
            .slice(0, MOST)
            .map((event) => html`<${Event} key=${event.id} event=${event} names=${names} />`)}
        </ol>`}
  </section>`;
}

function Select({ label, value, options, onChange }) {
  return html`<label class="field">
    <span>${label}</span>
    <select value=${value} onChange=${onChange}>
      <option value=${ALL}>all</option>
      ${options.map(
        ([key, text]) => html`<option value=${key} selected=${key === value}>${text}</option>`,
      )}
    </select>
  </label>`;
}

function Event({ event, names }) {
  const now = Date.now() / 1000;
  const about = nodesOf(event).map((nodeId) => nameOf(names, nodeId));
  return html`<li>
    <time datetime=${new Date(event.time * 1000).toISOString()}>
      ${formatTime(event.time, now)}
    </time>
    <${State} tone=${kindTone(event.kind)}>${kindText(event.kind)}<//>
    <div class="event-text">
      <p>${event.message}</p>
      <${Details} details=${event.details ?? {}} names=${names} />
      ${(event.model_id || about.length > 0) &&
      html`<p class="note">
        ${[event.model_id && `model ${event.model_id}`, about.length && `on ${about.join(", ")}`]
          .filter(Boolean)
          .join("; ")}
      </p>`}
    </div>
  </li>`;
}

function Details({ details, names }) {
  const { paused_seconds: paused, moved, gain } = details;
  const facts = [];
  if (typeof paused === "number") facts.push(`Streams paused for ${formatSeconds(paused)}.`);
  if (typeof gain === "number") facts.push(`Predicted gain: ${formatPercent(gain)}.`);
  return html`
    ${facts.length > 0 && html`<p>${facts.join(" ")}</p>`}
    ${moved?.length > 0 &&
    html`<ul>
      ${moved.map(
        (move) =>
          html`<li>
            stage ${move.stage} moved
            ${move.from ? ` from ${nameOf(names, move.from)}` : ""}
            ${move.to ? ` to ${nameOf(names, move.to)}` : ""}
          </li>`,
      )}
    </ul>`}
  `;
}
