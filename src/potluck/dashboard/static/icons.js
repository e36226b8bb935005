// Icons of 20 × 20, drawn with the colour of the text around them. They are decoration: what a
// control does is in its label.

import { html } from "./lib.js";

const PATHS = {
  brand: "M2.5 9h15v3.5a5 5 0 0 1-5 5h-5a5 5 0 0 1-5-5zM1 9h18M7 6V3.5M10 6V2.5M13 6V3.5",
  chat: "M4 4h12a1.5 1.5 0 0 1 1.5 1.5v7A1.5 1.5 0 0 1 16 14H9l-4 3v-3H4a1.5 1.5 0 0 1-1.5-1.5v-7A1.5 1.5 0 0 1 4 4z",
  cluster: "M3 3.5h6v5H3zM11 11.5h6v5h-6zM11 3.5h6v5h-6zM3 11.5h6v5H3z",
  events: "M10 2.5a7.5 7.5 0 1 0 0 15 7.5 7.5 0 0 0 0-15zM10 6v4.2l2.8 1.8",
  models: "M10 2.5 17 6l-7 3.5L3 6zM3 10l7 3.5 7-3.5M3 14l7 3.5 7-3.5",
  series: "M2.5 3v14h15M5.5 13l3.5-4 3 2.5 4.5-6",
  plus: "M10 4v12M4 10h12",
  send: "M10 16V4.5M5 9l5-5 5 5",
  stop: "M6 6h8v8H6z",
  edit: "M12.5 4.5l3 3L7 16H4v-3zM11 6l3 3",
  copy: "M7 7h9v9H7zM13 7V4H4v9h3",
  retry: "M15.5 8A6 6 0 1 0 16 11.5M15.8 4v4h-4",
  sliders: "M3 6h8M15 6h2M3 14h2M9 14h8M11 4v4M15 4v4M11 4h4v4h-4zM5 12h4v4H5z",
  more: "M4 10a.6.6 0 1 0 1.2 0a.6.6 0 1 0-1.2 0M9.4 10a.6.6 0 1 0 1.2 0a.6.6 0 1 0-1.2 0M14.8 10a.6.6 0 1 0 1.2 0a.6.6 0 1 0-1.2 0",
  list: "M3 5.5h14M3 10h14M3 14.5h14",
  sun: "M10 6.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7zM10 2v1.5M10 16.5V18M2 10h1.5M16.5 10H18M4.3 4.3l1.1 1.1M14.6 14.6l1.1 1.1M15.7 4.3l-1.1 1.1M5.4 14.6l-1.1 1.1",
  moon: "M16.5 12A7 7 0 0 1 8 3.5a7 7 0 1 0 8.5 8.5z",
  auto: "M10 2.5a7.5 7.5 0 1 0 0 15zM10 2.5a7.5 7.5 0 0 1 0 15",
  key: "M12.5 3a4.5 4.5 0 0 0-4.3 5.8L3 14v3h3v-2h2v-2l1.2-1.2A4.5 4.5 0 1 0 12.5 3zM13.5 6.5h.01",
  tool: "M13 3a4 4 0 0 0-3.8 5.3L3.5 14a1.8 1.8 0 0 0 2.5 2.5l5.7-5.7A4 4 0 0 0 17 6l-2.5 2.5-2-.5-.5-2L14.5 3.5A4 4 0 0 0 13 3z",
  check: "M4 10.5l4 4 8-9",
};

/** An icon by its name. */
export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 20 20" aria-hidden="true" focusable="false">
    <path d=${PATHS[name]} />
  </svg>`;
}
