// What views import: the vendored packages, and what they share.

import { createElement, Component, render } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export { Component, render };
export const html = htm.bind(createElement);
export {
  useEffect, useLayoutEffect, useMemo, useRef, useState,
} from "./vendor/preact-hooks.js";
export { batch, computed, effect, signal } from "./vendor/signals.js";

/** Returns what a CSS custom property such as "--accent" is now, as "rgb(…)", for canvases. */
export function cssColor(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}

/** Copies a text to the clipboard, also where the page is not served over HTTPS. */
export async function copyText(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "visually-hidden";
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
