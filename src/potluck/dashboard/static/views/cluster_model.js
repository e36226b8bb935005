// What a document of schema potluck.cluster/1 means to the views: machines with their memory, the
// way of a token through a model, and links. Pure: takes documents, returns plain values.

const ID_DIGITS = 4;

/**
 * Map node ids to names. Nodes that share a name get the first digits of their id. `known` are the
 * names of earlier documents: of nodes that are silent now, of which a document has only the id,
 * and of those that have left.
 */
export function nodeNames(nodes, known) {
  const named = new Map(known);
  for (const node of nodes) {
    named.set(node.node_id, node.name || known.get(node.node_id) || "");
  }
  const uses = new Map();
  for (const name of named.values()) uses.set(name, (uses.get(name) ?? 0) + 1);
  const names = new Map();
  for (const [id, name] of named) {
    const short = id.slice(0, ID_DIGITS);
    names.set(id, !name ? `node ${short}` : uses.get(name) > 1 ? `${name} (${short})` : name);
  }
  return names;
}

/** The name of a node that may not be in the document (any more). */
export function nameOf(names, nodeId) {
  return names.get(nodeId) ?? `node ${nodeId.slice(0, ID_DIGITS)}`;
}

const sum = (values) => values.reduce((total, value) => total + value, 0);

/** The weights, cache and remaining bytes of a stage. */
function stageBytes(stage) {
  const memory = stage.memory;
  const weights = sum(Object.values(memory.weights));
  const cache = memory.cache_bytes + memory.state_bytes;
  return { weights, cache, working: Math.max(0, stage.num_bytes - weights - cache) };
}

function holdingKey(nodeId, deployment, holding) {
  const part = holding.part ? holding.part.member : "";
  const layers = `${holding.start_layer}-${holding.end_layer}`;
  return [nodeId, deployment, holding.unit_id, layers, part].join("|");
}

function stagesByHolding(cluster) {
  const found = new Map();
  for (const deployment of cluster.deployments) {
    for (const stage of deployment.stages) {
      found.set(holdingKey(stage.node_id, deployment.deployment, stage), stage);
    }
  }
  return found;
}

/** The parts of a memory in the order in which they are drawn, and what they are called. */
export const MEMORY_PARTS = [
  ["weights", "weights"],
  ["cache", "cache"],
  ["working", "working memory"],
  ["spare", "stages not in use"],
  ["others", "used by others"],
  ["free", "free"],
];

function newPool(label, totalBytes) {
  return { label, totalBytes, weights: 0, cache: 0, working: 0, spare: 0, others: 0, free: 0 };
}

function addHolding(pool, numBytes, stage) {
  if (!stage) {
    pool.spare += numBytes;
    return;
  }
  const parts = stageBytes(stage);
  // What is in this pool of a stage is all of it, or what its device does not hold.
  const scale = stage.num_bytes > 0 ? numBytes / stage.num_bytes : 0;
  pool.weights += parts.weights * scale;
  pool.cache += parts.cache * scale;
  pool.working += parts.working * scale;
}

function settle(pool, freeBytes) {
  const held = pool.weights + pool.cache + pool.working + pool.spare;
  pool.totalBytes = Math.max(pool.totalBytes, held);
  pool.free = Math.max(0, Math.min(freeBytes, pool.totalBytes - held));
  pool.others = Math.max(0, pool.totalBytes - held - pool.free);
  return pool;
}

const STATE_ORDER = { ready: 0, draining: 1, silent: 2 };

/** One per host: agents on one machine share its memory. Ready ones come first. */
export function machinesOf(cluster, names) {
  return grouped(cluster, names, (node) => node.host_id ?? node.node_id);
}

/** The same with one per node, whose memory counts what other nodes of its host take as others'. */
export function boxesOf(cluster, names) {
  const boxes = grouped(cluster, names, (node) => node.node_id);
  return boxes.map((box) => {
    const host = box.nodes[0].host_id;
    const numSharing = cluster.nodes.filter((node) => host && node.host_id === host).length;
    return { ...box, numSharing };
  });
}

function grouped(cluster, names, keyOf) {
  const stages = stagesByHolding(cluster);
  const groups = new Map();
  for (const node of cluster.nodes) {
    const key = keyOf(node);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(node);
  }
  const machines = [...groups].map(([key, nodes]) => machineOf(key, nodes, stages, names));
  return machines.sort((one, other) => STATE_ORDER[one.state] - STATE_ORDER[other.state]);
}

function machineOf(key, nodes, stages, names) {
  const present = nodes.filter((node) => node.state !== "silent");
  const states = nodes.map((node) => node.state);
  const machine = {
    key,
    nodes,
    nodeIds: nodes.map((node) => node.node_id),
    label: nodes.length === 1 ? names.get(nodes[0].node_id) : nodes[0].name || key,
    state: states.includes("ready") ? "ready" : states.includes("draining") ? "draining" : "silent",
    description: "",
    pools: [],
    units: [],
  };
  if (present.length === 0) return machine;
  const { cpu, memory } = present[0].hardware;
  machine.description = `${cpu.name}, ${cpu.num_usable_cores} cores, ${cpu.architecture}`;
  const own = newPool("memory", memory.total_bytes);
  const devices = new Map();
  for (const node of present) {
    for (const unit of node.units) {
      machine.units.push({ node, unit });
      if (unit.is_shared) continue;
      const deviceId = unit.unit_id.split("/")[0];
      if (!devices.has(deviceId)) devices.set(deviceId, devicePool(node, unit, deviceId));
    }
    for (const held of node.held) {
      const stage = stages.get(holdingKey(node.node_id, held.deployment, held));
      if (held.num_bytes > 0) addHolding(own, held.num_bytes, stage);
      const device = devices.get(held.unit_id.split("/")[0]);
      if (held.device_bytes > 0 && device) addHolding(device.pool, held.device_bytes, stage);
    }
  }
  const free = Math.min(...present.map((node) => node.available_bytes));
  machine.pools.push(settle(own, free));
  for (const { pool, freeBytes } of devices.values()) machine.pools.push(settle(pool, freeBytes));
  return machine;
}

function devicePool(node, unit, deviceId) {
  const known = (node.hardware.detectors ?? [])
    .flatMap((detector) => detector.devices)
    .find((device) => device.device_id === deviceId);
  const total = known?.memory?.total_bytes ?? unit.usable_bytes;
  return { pool: newPool(unit.description || deviceId, total), freeBytes: unit.usable_bytes };
}

/** Sums over all memories of all machines. */
export function memoryTotals(machines) {
  const totals = newPool("memory", 0);
  for (const pool of machines.flatMap((machine) => machine.pools)) {
    totals.totalBytes += pool.totalBytes;
    for (const [kind] of MEMORY_PARTS) totals[kind] += pool[kind];
  }
  return totals;
}

/** Links by sender and receiver; an empty map if the document has none. */
export function linksOf(cluster) {
  const links = new Map();
  for (const link of cluster.links ?? []) links.set(`${link.from}>${link.to}`, link);
  return links;
}

/**
 * The steps of a token through a deployment (or a plan): units that share a stage are one step.
 * Each step ends with the hop to the next one; the last one leads back to the coordinator. `busy`
 * are the shares of the last second that each stage computed, if they are known.
 */
export function pathOf(deployment, links = new Map(), busy = []) {
  const slow = new Map((deployment.slow_stages ?? []).map((each) => [each.stage, each.slowdown]));
  const steps = [];
  for (const stage of deployment.stages) {
    const member = {
      stage: stage.stage,
      nodeId: stage.node_id,
      unitId: stage.unit_id,
      part: stage.part,
      numBytes: stage.num_bytes,
      bytes: stageBytes(stage),
      predicted: stage.predicted,
      measured: stage.measured ?? null,
      busy: busy[stage.stage] ?? null,
      slowdown: slow.get(stage.stage) ?? null,
      isBottleneck: deployment.prediction?.bottleneck === stage.stage,
    };
    if (stage.part && stage.part.member > 0 && steps.length > 0) {
      steps.at(-1).members.push(member);
    } else {
      const layers = { startLayer: stage.start_layer, endLayer: stage.end_layer };
      steps.push({ ...layers, members: [member], hop: null });
    }
  }
  const coordinator = deployment.epoch?.coordinator ?? deployment.coordinator;
  steps.forEach((step, index) => {
    const leader = step.members[0];
    const isLast = index === steps.length - 1;
    const receiver = isLast ? coordinator : steps[index + 1].members[0].nodeId;
    step.hop = hopOf(leader.nodeId, receiver, leader.predicted?.hop_seconds ?? null, links);
    step.hop.isReturn = isLast;
  });
  const first = steps[0]?.members[0].nodeId;
  const entrySeconds = deployment.prediction?.entry_seconds ?? null;
  const entry = first ? hopOf(coordinator, first, entrySeconds, links) : null;
  return { steps, coordinator, entry };
}

function hopOf(from, to, predictedSeconds, links) {
  const isLocal = from === to;
  return { from, to, isLocal, predictedSeconds, link: links.get(`${from}>${to}`) ?? null };
}

/** The ids of stages as they are numbered elsewhere: "stage 1", "stages 1 to 3". */
export function stageLabel(step) {
  const first = step.members[0].stage;
  const last = step.members.at(-1).stage;
  return first === last ? `stage ${first}` : `stages ${first} to ${last}`;
}

/** "layers 0 to 29", "layer 4", and what the ends have in addition. */
export function layersLabel(step, numLayers) {
  const { startLayer, endLayer } = step;
  const parts = [];
  if (startLayer === 0) parts.push("embedding");
  if (endLayer - startLayer === 1) parts.push(`layer ${startLayer}`);
  if (endLayer - startLayer > 1) parts.push(`layers ${startLayer} to ${endLayer - 1}`);
  if (endLayer === numLayers) parts.push("head");
  return parts.join(", ");
}

/** What of a group's matrices a member has: "half of each matrix" as parts, empty for one alone. */
export function shareLabel(part) {
  if (!part) return "";
  const total = sum(part.shares);
  return `${part.shares[part.member]} of ${total} parts`;
}

/** How measured compares with predicted: a text, and whether it is within the margin. */
export function comparison(predicted, measured, margin) {
  if (!predicted || !measured) return null;
  const ratio = measured / predicted;
  if (Math.abs(ratio - 1) <= margin) return { text: "as predicted", isWithin: true, ratio };
  const percent = Math.round(Math.abs(ratio - 1) * 100);
  const less = `${percent} % less than predicted`;
  const more = ratio < 2 ? `${percent} % more than predicted` : `${ratio.toFixed(1)} × predicted`;
  return { text: ratio < 1 ? less : more, isWithin: false, ratio };
}
