// What the Events view shows of the events that are kept. Pure.

/** Kinds of events, how they are called, and how serious they are. */
const KINDS = {
  joined: ["joined", "good"],
  left: ["left", "plain"],
  lost: ["lost", "bad"],
  removed: ["removed", "warn"],
  deploying: ["deploying", "plain"],
  ready: ["ready", "good"],
  failed: ["failed", "bad"],
  degraded: ["degraded", "bad"],
  recovered: ["recovered", "good"],
  rebalanced: ["rebalanced", "plain"],
  undeployed: ["undeployed", "plain"],
  unit_out: ["unit out", "bad"],
  unit_back: ["unit back", "good"],
};

/** "unit out" for a kind; a later version may have kinds that this page does not know. */
export function kindText(kind) {
  return KINDS[kind]?.[0] ?? kind.replaceAll("_", " ");
}

export function kindTone(kind) {
  return KINDS[kind]?.[1] ?? "plain";
}

export const ALL = "";

/** Events that pass the filter, newest first. `search` is looked for in all that is shown. */
export function filtered(events, filter, names) {
  const words = filter.search.toLowerCase().split(/\s+/).filter(Boolean);
  return events
    .filter(
      (event) =>
        (filter.kind === ALL || event.kind === filter.kind) &&
        (filter.modelId === ALL || event.model_id === filter.modelId) &&
        (filter.nodeId === ALL || nodesOf(event).includes(filter.nodeId)) &&
        words.every((word) => textOf(event, names).includes(word)),
    )
    .reverse();
}

/** The nodes that an event is about: its own, and those that stages moved from or to. */
export function nodesOf(event) {
  const moved = (event.details?.moved ?? []).flatMap((move) => [move.from, move.to]);
  return [...new Set([event.node_id, ...moved].filter(Boolean))];
}

function textOf(event, names) {
  const nodes = nodesOf(event).flatMap((id) => [id, names.get(id) ?? ""]);
  const details = JSON.stringify(event.details ?? {});
  return [kindText(event.kind), event.message, event.model_id ?? "", ...nodes, details]
    .join(" ")
    .toLowerCase();
}

/** What can be chosen in each filter: only what occurs, in order of the alphabet. */
export function choices(events) {
  const unique = (values) => [...new Set(values.filter(Boolean))].sort();
  return {
    kinds: unique(events.map((event) => event.kind)),
    modelIds: unique(events.map((event) => event.model_id)),
    nodeIds: unique(events.flatMap(nodesOf)),
  };
}
