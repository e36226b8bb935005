// Small components that several views share.

import { html, useEffect, useRef, useState } from "../lib.js";
import { formatBytes, formatPercent } from "../format.js";
import { MEMORY_PARTS } from "./cluster_model.js";

/** The width of an element in pixels, kept up to date; `initial` before it is known. */
export function useWidth(initial) {
  const ref = useRef(null);
  const [width, setWidth] = useState(initial);
  useEffect(() => {
    if (!ref.current) return undefined;
    const observer = new ResizeObserver((entries) => {
      setWidth(Math.floor(entries[0].contentRect.width));
    });
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}

/** A state in words, with a mark of its own shape beside its colour. */
export function State({ tone, children }) {
  return html`<span class=${`state state-${tone}`}>${children}</span>`;
}

const NODE_TONES = { ready: "good", draining: "warn", silent: "bad" };

export function NodeState({ state }) {
  return html`<${State} tone=${NODE_TONES[state] ?? "warn"}>${state}<//>`;
}

const MODEL_TONES = { ready: "good", loading: "busy", degraded: "bad" };

export function ModelState({ state }) {
  return html`<${State} tone=${MODEL_TONES[state] ?? "warn"}>${state}<//>`;
}

/** A memory as a bar; `MemoryText` says the same. */
export function MemoryBar({ pool }) {
  return html`<div class="memory-bar" aria-hidden="true">
    ${MEMORY_PARTS.map(
      ([kind]) =>
        pool[kind] > 0 &&
        html`<span class=${`fill fill-${kind}`} style=${{ flexGrow: pool[kind] }}></span>`,
    )}
  </div>`;
}

export function memoryText(pool) {
  const parts = MEMORY_PARTS.filter(([kind]) => pool[kind] > 0 && kind !== "free").map(
    ([kind, name]) => `${name} ${formatBytes(pool[kind])}`,
  );
  return [...parts, `free ${formatBytes(pool.free)}`].join(", ");
}

export function MemoryLegend() {
  return html`<ul class="legend" aria-label="Legend of memory">
    ${MEMORY_PARTS.map(
      ([kind, name]) =>
        html`<li><span class=${`swatch fill-${kind}`} aria-hidden="true"></span>${name}</li>`,
    )}
  </ul>`;
}

/** A share of 1 as a bar with its number. */
export function Share({ value, label }) {
  return html`<span class="share">
    <span class="share-track" aria-hidden="true">
      <span class="share-fill" style=${{ width: `${Math.min(100, value * 100)}%` }}></span>
    </span>
    <span>${label} ${formatPercent(value)}</span>
  </span>`;
}

/** Buttons of which one is on: the choice of a model, or of a range. */
export function Choice({ label, options, value, onChoose }) {
  return html`<div class="choice" role="group" aria-label=${label}>
    <span class="choice-label" aria-hidden="true">${label}</span>
    ${options.map(
      ([key, text]) =>
        html`<button
          type="button"
          aria-pressed=${String(key === value)}
          onClick=${() => onChoose(key)}
        >
          ${text}
        </button>`,
    )}
  </div>`;
}

/** One name with its value, in a list of them. */
export function Fact({ name, children }) {
  return html`<div><dt>${name}</dt><dd>${children}</dd></div>`;
}

/** A message that something went wrong, with the hint that came with it. */
export function Failure({ error, title }) {
  return html`<div class="failure" role="alert">
    <strong>${title}</strong>
    <p>${error.message}</p>
    ${error.hint && html`<p class="hint">${error.hint}</p>`}
  </div>`;
}

/** A region that scrolls sideways by itself, reachable with the keyboard. */
export function Scrolling({ label, children }) {
  return html`<div class="scrolling" role="region" aria-label=${label} tabindex="0">
    ${children}
  </div>`;
}
