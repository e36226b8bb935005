// Requests to the node that served this page, and its event streams.

const ROOT = new URL("../", import.meta.url);
const KEY_NAME = "potluck.key";
const SILENCE_MS = 45_000;

/** An error of the server, or of the way to it (status 0). */
export class ApiError extends Error {
  constructor(message, { hint = "", status = 0, code = "" } = {}) {
    super(message);
    this.name = "ApiError";
    this.hint = hint;
    this.status = status;
    this.code = code;
  }
}

/** The API key or token of this tab, or null. */
export function storedKey() {
  return sessionStorage.getItem(KEY_NAME);
}

export function storeKey(key) {
  if (key) sessionStorage.setItem(KEY_NAME, key);
  else sessionStorage.removeItem(KEY_NAME);
}

/** Takes the token of an address that ends with #token=…, and removes it from the address. */
export function takeTokenFromAddress() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return;
  storeKey(token);
  history.replaceState(null, "", location.pathname + location.search);
}

/** Sends a request, and returns the response if its status is one of success. */
export async function send(path, { method = "GET", body, headers = {}, signal } = {}) {
  const sent = { ...headers };
  const key = storedKey();
  if (key) sent.Authorization = `Bearer ${key}`;
  if (body !== undefined) sent["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path.replace(/^\//, ""), ROOT), {
      method, headers: sent, signal, cache: "no-store", credentials: "omit",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("This node does not answer.", { hint: "check that its agent runs" });
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

/** Sends a request, and returns the JSON document of the answer (null if it is empty). */
export async function request(path, options) {
  const text = await (await send(path, options)).text();
  return text ? JSON.parse(text) : null;
}

async function errorOf(response) {
  const text = await response.text();
  try {
    return errorFrom(JSON.parse(text).error, response.status);
  } catch {
    return new ApiError(`The server answered with the status ${response.status}.`, {
      status: response.status,
    });
  }
}

/** Makes an ApiError of the "error" of a document. */
export function errorFrom(error, status = 0) {
  return new ApiError(String(error.message), {
    hint: error.hint ?? "", status, code: error.code ?? "",
  });
}

/**
 * Yields the server-sent events of a response as {event, id, data}, and {comment} for comments.
 * See https://html.spec.whatwg.org/multipage/server-sent-events.html
 */
export async function* serverSentEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  let current = { event: "message", id: null, data: [] };
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      buffer += value;
      const lines = buffer.split(/\r\n|\n/);
      buffer = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (current.data.length) yield { ...current, data: current.data.join("\n") };
          current = { event: "message", id: null, data: [] };
        } else if (line.startsWith(":")) {
          yield { comment: line.slice(1).trim() };
        } else {
          const [, field, text] = /^([^:]*):? ?(.*)$/.exec(line);
          if (field === "data") current.data.push(text);
          else if (field === "event" || field === "id") current[field] = text;
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Whether the same request would be refused again: a limit (408, 429) may have room later. */
function isFinal(status) {
  return status >= 400 && status < 500 && status !== 408 && status !== 429;
}

/**
 * Reads an event stream for as long as the page is open, and connects again when it ends.
 *
 * onEvent gets {event, id, data}, with data parsed as JSON. onState gets "connecting", "live",
 * "lost", or the ApiError of a request that was refused, after which the stream stays closed.
 * Returns a function that closes the stream.
 */
export function openStream(path, onEvent, onState = () => {}) {
  const closed = new AbortController();
  let lastId = null;

  async function readOnce() {
    const attempt = new AbortController();
    const abort = () => attempt.abort();
    closed.signal.addEventListener("abort", abort);
    let timer = setTimeout(abort, SILENCE_MS);
    try {
      const headers = { Accept: "text/event-stream" };
      if (lastId !== null) headers["Last-Event-ID"] = lastId;
      const response = await send(path, { headers, signal: attempt.signal });
      onState("live");
      for await (const item of serverSentEvents(response)) {
        clearTimeout(timer);
        timer = setTimeout(abort, SILENCE_MS);
        if (item.comment !== undefined) continue;
        if (item.id !== null) lastId = item.id;
        onEvent({ ...item, data: JSON.parse(item.data) });
      }
    } finally {
      clearTimeout(timer);
      closed.signal.removeEventListener("abort", abort);
    }
  }

  async function readAlways() {
    let delay = 500;
    onState("connecting");
    while (!closed.signal.aborted) {
      const started = Date.now();
      try {
        await readOnce();
      } catch (error) {
        if (error instanceof ApiError && isFinal(error.status)) {
          onState(error);
          return;
        }
        // Everything else, such as a connection that broke, is a reason to try again.
      }
      if (closed.signal.aborted) return;
      onState("lost");
      delay = Date.now() - started > 10_000 ? 500 : Math.min(delay * 2, 10_000);
      await new Promise((resolve) => setTimeout(resolve, delay));
    }
  }

  readAlways();
  return () => closed.abort();
}
