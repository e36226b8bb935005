// The page's frame: the header with its navigation, the key prompt, and the view of the address.

import { Component, html, render, signal, useEffect, useRef, useState } from "./lib.js";
import { storedKey, takeTokenFromAddress } from "./api.js";
import { Icon } from "./icons.js";
import {
  access, accessError, canAdminister, cluster, connection, lacksKey, start, useKey,
} from "./state.js";

const VIEWS = [
  { name: "chat", title: "Chat", load: async () => (await import("./views/chat.js")).ChatView },
  {
    name: "cluster", title: "Cluster",
    load: async () => (await import("./views/cluster.js")).ClusterView,
  },
  { name: "events", title: "Events", load: async () => (await import("./views/events.js")).EventsView },
  { name: "models", title: "Models", load: async () => (await import("./views/models.js")).ModelsView },
  { name: "series", title: "Series", load: async () => (await import("./views/series.js")).SeriesView },
];
const THEMES = [
  { name: "auto", title: "system" },
  { name: "light", title: "light" },
  { name: "dark", title: "dark" },
];
const THEME_ICONS = { auto: "auto", light: "sun", dark: "moon" };

const route = signal("chat");
const loaded = signal({});
const asksForKey = signal(false);

function readAddress() {
  takeTokenFromAddress();
  const name = location.hash.replace(/^#\/?/, "").split("/")[0];
  route.value = (VIEWS.find((view) => view.name === name) ?? VIEWS[0]).name;
}

function Navigation() {
  return html`<nav class="navigation" aria-label="Views">
    ${VIEWS.map((view) => html`<a
      href=${`#/${view.name}`}
      aria-current=${route.value === view.name ? "page" : null}
    ><${Icon} name=${view.name} /><span>${view.title}</span></a>`)}
  </nav>`;
}

function connectionText() {
  if (accessError.value) return ["bad", "No connection"];
  if (connection.value === "live") {
    const nodes = cluster.value?.nodes;
    if (!nodes) return ["good", "Live"];
    return ["good", `${nodes.length} ${nodes.length === 1 ? "node" : "nodes"}`];
  }
  if (connection.value === "lost") return ["bad", "Reconnecting"];
  if (connection.value === "refused") return ["warn", "Not live"];
  return ["warn", "Connecting"];
}

function Connection() {
  const [kind, text] = connectionText();
  return html`<span class=${`connection ${kind}`} role="status">
    <span class="dot" aria-hidden="true"></span>${text}
  </span>`;
}

function ThemeButton() {
  const [name, setName] = useState(document.documentElement.dataset.theme ?? "auto");
  const next = THEMES[(THEMES.findIndex((each) => each.name === name) + 1) % THEMES.length];
  const title = THEMES.find((each) => each.name === name).title;
  function change() {
    if (next.name === "auto") {
      delete document.documentElement.dataset.theme;
      localStorage.removeItem("potluck.theme");
    } else {
      document.documentElement.dataset.theme = next.name;
      localStorage.setItem("potluck.theme", next.name);
    }
    setName(next.name);
    dispatchEvent(new Event("themechange"));
  }
  const label = `Theme: ${title}. Change to ${next.title}`;
  return html`<button type="button" class="icon-button" aria-label=${label} title=${label}
    onClick=${change}><${Icon} name=${THEME_ICONS[name]} /></button>`;
}

function KeyButton() {
  if (access.value === null) return null;
  const label = canAdminister.value ? "API key (may administer)" : "API key";
  return html`<button type="button" class="icon-button" aria-label=${label} title=${label}
    onClick=${() => { asksForKey.value = true; }}><${Icon} name="key" /></button>`;
}

function KeyDialog() {
  const dialog = useRef(null);
  const [text, setText] = useState("");
  const [problem, setProblem] = useState("");
  const isOpen = lacksKey.value || asksForKey.value;
  const isRequired = lacksKey.value;
  useEffect(() => {
    if (isOpen && !dialog.current.open) dialog.current.showModal();
    if (!isOpen && dialog.current.open) dialog.current.close();
  }, [isOpen]);
  async function submit(event) {
    event.preventDefault();
    const isAccepted = await useKey(text.trim());
    setProblem(isAccepted ? "" : "The server does not accept this key.");
    if (isAccepted) {
      setText("");
      asksForKey.value = false;
    }
  }
  async function forget() {
    await useKey(null);
    asksForKey.value = false;
  }
  return html`<dialog ref=${dialog} class="dialog" aria-labelledby="key-title"
    onCancel=${(event) => { if (isRequired) event.preventDefault(); }}
    onClose=${() => { asksForKey.value = false; }}>
    <form onSubmit=${submit}>
      <h2 id="key-title">API key</h2>
      <p class="muted">${isRequired
        ? "This cluster requires an API key. It is kept in this tab until the tab is closed."
        : keyText()}</p>
      <label class="field"><span>Key or token</span>
        <input type="password" autocomplete="off" required value=${text} class="mono"
          aria-describedby="key-problem"
          onInput=${(event) => setText(event.target.value)} /></label>
      <p id="key-problem" class="problem" role="alert">${problem}</p>
      <div class="row end">
        ${!isRequired && html`<button type="button" class="button quiet"
          onClick=${() => { asksForKey.value = false; }}>Cancel</button>`}
        ${!isRequired && storedKey() && html`<button type="button" class="button"
          onClick=${forget}>Forget the key</button>`}
        <button type="submit" class="button primary">Use this key</button>
      </div>
    </form>
  </dialog>`;
}

function keyText() {
  if (canAdminister.value) return "This tab has the right to administer the cluster.";
  const name = access.value?.key_name;
  const used = name ? `This tab uses the key “${name}”. ` : "";
  return `${used}Deploying models requires a key with the right to administer, or a token: run ` +
    "“potluck dashboard” on this machine and open the address that it prints.";
}

/** Shows what went wrong where a view failed, so that the others remain usable. */
class Boundary extends Component {
  constructor() {
    super();
    this.state = { error: null };
  }

  componentDidCatch(error) {
    console.error(error);
    this.setState({ error });
  }

  render({ children }) {
    if (this.state.error === null) return children;
    return html`<div class="view"><p class="notice bad" role="alert">
      This view failed: ${String(this.state.error.message)}
      <button type="button" class="button" onClick=${() => this.setState({ error: null })}>
        Try again</button>
    </p></div>`;
  }
}

function CurrentView() {
  const view = VIEWS.find((each) => each.name === route.value);
  const View = loaded.value[view.name];
  useEffect(() => {
    document.title = `${view.title} · Potluck`;
    if (View) return;
    view.load().then(
      (found) => { loaded.value = { ...loaded.value, [view.name]: found }; },
      (error) => {
        loaded.value = { ...loaded.value, [view.name]: () => { throw error; } };
      },
    );
  }, [view.name]);
  if (!View) return html`<div class="view" aria-busy="true"></div>`;
  return html`<${Boundary} key=${view.name}><${View} /><//>`;
}

function App() {
  return html`
    <a class="skip" href="#main" onClick=${(event) => {
      event.preventDefault();
      document.getElementById("main").focus();
    }}>Skip to the content</a>
    <header class="header">
      <a class="brand" href="#/chat"><${Icon} name="brand" /><span>Potluck</span></a>
      <${Navigation} />
      <div class="header-end">
        <${Connection} /><${KeyButton} /><${ThemeButton} />
      </div>
    </header>
    <main id="main" tabindex="-1">
      ${accessError.value && html`<p class="notice bad" role="alert">
        ${accessError.value.message} The page tries again every few seconds.</p>`}
      <${CurrentView} />
    </main>
    <${KeyDialog} />
  `;
}

readAddress();
addEventListener("hashchange", () => {
  const hadToken = location.hash.startsWith("#token=");
  readAddress();
  if (hadToken) start();
});
const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
start();
