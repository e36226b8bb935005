// What the page knows of the cluster, as signals. Started once by app.js.

import { batch, computed, signal } from "./lib.js";
import { ApiError, openStream, request, storedKey, storeKey } from "./api.js";

const NUM_EVENTS = 1000;
const NUM_SAMPLES = 3600;
const RECHECK_MS = 1000;
const RETRY_MS = 3000;

/** The document of /cluster/access, or null until it is known. */
export const access = signal(null);
/** Why access is not known, or null. */
export const accessError = signal(null);
/** The state of the event stream: "connecting", "live", "lost" or "refused". */
export const connection = signal("connecting");
/** The document of /cluster, or null until it is known. */
export const cluster = signal(null);
/** Events, oldest first. */
export const events = signal([]);
/** Samples of the last hour, oldest first; those before the page was opened are in the series. */
export const samples = signal([]);
/** The models of /v1/models. */
export const models = signal([]);

export const canAdminister = computed(() => access.value?.can_administer ?? false);
/** Whether a key has to be entered before anything else can be asked. */
export const lacksKey = computed(
  () => access.value !== null && access.value.needs_key && access.value.key_name === null,
);

let close = null;
let recheck = null;
let numStarts = 0;
let modelsAsked = "";

/** Asks what this tab may do, then reads the event stream. Called again when the key changes. */
export async function start() {
  const number = ++numStarts;
  clearTimeout(recheck);
  close?.();
  close = null;
  try {
    const found = await request("cluster/access");
    if (number !== numStarts) return;
    if (storedKey() && found.key_name === null && !found.can_administer) storeKey(null);
    batch(() => {
      access.value = found;
      accessError.value = null;
    });
  } catch (error) {
    if (number !== numStarts) return;
    accessError.value = error;
    recheck = setTimeout(start, RETRY_MS);
    return;
  }
  if (lacksKey.value) return;
  await refreshModels();
  if (number !== numStarts) return;
  close = openStream("cluster/events", take, takeState);
}

/** Uses another key, or none (null). Returns whether the server accepts it. */
export async function useKey(key) {
  storeKey(key);
  await start();
  return !lacksKey.value && (key === null || storedKey() === key);
}

/** Reads /v1/models. */
async function refreshModels() {
  try {
    models.value = (await request("v1/models")).data;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    modelsAsked = ""; // the next document of the cluster asks again
    if (error.status === 401) recheckAccess();
  }
}

/** Asks again what this tab may do, after a request was refused: its token may have expired. */
export function recheckAccess() {
  clearTimeout(recheck);
  recheck = setTimeout(start, RECHECK_MS);
}

function takeState(state) {
  if (typeof state === "string") {
    connection.value = state;
    return;
  }
  connection.value = "refused";
  if (state.status === 401) recheckAccess();
}

function take({ event, data }) {
  if (event === "cluster") {
    cluster.value = data;
    const asked = JSON.stringify(
      (data.deployments ?? []).map((each) => [each.model_id, each.state, each.reason]),
    );
    if (asked !== modelsAsked) {
      modelsAsked = asked;
      refreshModels();
    }
  } else if (event === "sample") {
    samples.value = [...samples.value.slice(1 - NUM_SAMPLES), data];
  } else if (event === "event") {
    // After connecting again, some that are known come again.
    if (events.value.some((each) => each.id === data.id && each.time === data.time)) return;
    events.value = [...events.value.slice(1 - NUM_EVENTS), data];
  }
}
