// Conversations, which are kept in this browser only: one entry of localStorage each, the oldest
// given up when there are too many or they are too large together.

import { computed, signal } from "../lib.js";

const PREFIX = "potluck.conversation.";
const CURRENT = "potluck.current-conversation";
const SETTINGS = "potluck.chat-settings";
const MAX_CONVERSATIONS = 100;
const MAX_CHARACTERS = 4_000_000;
const SAVE_MS = 1000;

export const NO_SETTINGS = {
  system: "", temperature: "", top_p: "", top_k: "", min_p: "", repetition_penalty: "",
  max_tokens: "", seed: "", stop: "", reasoning_effort: "", tools: "",
};

/** All conversations by their ids. */
const byId = signal({});
/** The id of the conversation that is shown. */
export const currentId = signal("");
/** Why conversations cannot be kept, or "". */
export const storageProblem = signal("");

export const current = computed(() => byId.value[currentId.value]);
/** The conversations that have messages, the latest first. */
export const listed = computed(() => Object.values(byId.value)
  .filter((each) => each.messages.length > 0)
  .sort((first, second) => second.updated - first.updated));

const unsaved = new Set();
let timer = null;

/** Returns an id that no other conversation or message has. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) =>
    byte.toString(16).padStart(2, "0")).join("");
}

/** Returns a conversation by its id, or undefined. */
export function conversation(id) {
  return byId.value[id];
}

/** Begins a conversation with the settings that were used last, and shows it. */
export function begin() {
  const last = current.value;
  if (last && last.messages.length === 0) return;
  const now = Date.now();
  const made = {
    id: newId(), title: "", model: last?.model ?? "", created: now, updated: now,
    settings: readSettings(), messages: [],
  };
  byId.value = { ...byId.value, [made.id]: made };
  show(made.id);
}

/** Shows a conversation. */
export function show(id) {
  currentId.value = id;
  sessionStorage.setItem(CURRENT, id);
}

/** Replaces fields of a conversation, and saves it within a second. */
export function change(id, fields) {
  const old = byId.value[id];
  if (!old) return;
  byId.value = { ...byId.value, [id]: { ...old, ...fields } };
  unsaved.add(id);
  timer ??= setTimeout(save, SAVE_MS);
}

/** Replaces fields of a message. */
export function changeMessage(id, messageId, fields) {
  const messages = byId.value[id]?.messages.map((each) =>
    (each.id === messageId ? { ...each, ...fields } : each));
  if (messages) change(id, { messages });
}

/** Changes the settings of a conversation; those that begin later have the same. */
export function changeSettings(id, settings) {
  change(id, { settings });
  write(SETTINGS, JSON.stringify(settings));
}

/** Deletes a conversation. */
export function remove(id) {
  const { [id]: removed, ...others } = byId.value;
  byId.value = others;
  unsaved.delete(id);
  localStorage.removeItem(PREFIX + removed.id);
  if (currentId.value === id) begin();
}

/** Writes what has changed to localStorage. */
export function save() {
  clearTimeout(timer);
  timer = null;
  let problem = "";
  for (const id of unsaved) {
    const each = byId.value[id];
    if (each && each.messages.length > 0) {
      if (!write(PREFIX + id, JSON.stringify(each))) problem = each.title;
    }
  }
  unsaved.clear();
  storageProblem.value = problem &&
    `There is no room in this browser to keep “${problem}”. Export it, or delete others.`;
}

function readSettings() {
  try {
    return { ...NO_SETTINGS, ...JSON.parse(localStorage.getItem(SETTINGS) ?? "{}") };
  } catch {
    return NO_SETTINGS;
  }
}

function storedKeys() {
  return Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));
}

/** Writes an entry, after giving up the oldest conversations if there is no room for it. */
function write(key, text) {
  if (text.length > MAX_CHARACTERS) return false;
  const sizes = new Map(storedKeys().map((each) => [each, localStorage.getItem(each).length]));
  sizes.delete(key);
  let total = [...sizes.values()].reduce((sum, size) => sum + size, text.length);
  const oldest = [...listed.value].reverse().map((each) => PREFIX + each.id)
    .filter((each) => sizes.has(each) && each !== PREFIX + currentId.value);
  while (oldest.length && (total > MAX_CHARACTERS || sizes.size >= MAX_CONVERSATIONS)) {
    const given = oldest.shift();
    total -= sizes.get(given);
    sizes.delete(given);
    forget(given);
  }
  for (;;) {
    try {
      localStorage.setItem(key, text);
      return true;
    } catch (error) {
      if (error.name !== "QuotaExceededError" || oldest.length === 0) return false;
      forget(oldest.shift());
    }
  }
}

function forget(key) {
  localStorage.removeItem(key);
  const { [key.slice(PREFIX.length)]: _, ...others } = byId.value;
  byId.value = others;
}

function read(key) {
  try {
    const found = JSON.parse(localStorage.getItem(key));
    // An answer that was being written when the page was closed does not go on.
    const messages = found.messages.map((each) =>
      (each.state === "running" ? { ...each, state: "stopped" } : each));
    return { ...found, messages, settings: { ...NO_SETTINGS, ...found.settings } };
  } catch {
    return null;
  }
}

/** Reads what is kept. Called once. */
export function load() {
  const found = storedKeys().map(read).filter((each) => each !== null);
  byId.value = Object.fromEntries(found.map((each) => [each.id, each]));
  const shown = sessionStorage.getItem(CURRENT);
  if (shown && byId.value[shown]) show(shown);
  else begin();
  addEventListener("pagehide", save);
  // Another tab of this browser changed something.
  addEventListener("storage", ({ key }) => {
    if (key === null || !key.startsWith(PREFIX)) return;
    const id = key.slice(PREFIX.length);
    const changed = read(key);
    if (changed) byId.value = { ...byId.value, [id]: changed };
    else if (id !== currentId.value) forget(key);
  });
}
