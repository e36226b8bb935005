// The Cluster view: machines and their memory, the way of a token through each model, units and
// why they have their role, links. Live: it shows what the signals hold.

import { html, signal, useState } from "../lib.js";
import { cluster, samples } from "../state.js";
import {
  boxesOf,
  comparison,
  linksOf,
  machinesOf,
  memoryTotals,
  nameOf,
  pathOf,
} from "./cluster_model.js";
import { hopsOf, inPathOrder, layoutArrows, layoutBoxes } from "./cluster_map.js";
import {
  count,
  formatBytes,
  formatNumber,
  formatPercent,
  formatRate,
  formatSeconds,
} from "../format.js";
import {
  Choice,
  MemoryBar,
  MemoryLegend,
  memoryText,
  ModelState,
  NodeState,
  Scrolling,
  useWidth,
} from "./parts.js";
import { namesOfNodes } from "./names.js";
import { linkText, TokenPath } from "./path.js";

const BUSY_SECONDS = 5; // what is shown as utilisation is the mean of so many samples

const chosenModel = signal(null);

export function ClusterView() {
  const document = cluster.value;
  if (!document) {
    return html`<section class="view"><h1>Cluster</h1><p role="status">Loading …</p></section>`;
  }
  const names = namesOfNodes.value;
  const machines = machinesOf(document, names);
  const links = linksOf(document);
  const chosen =
    document.deployments.find((each) => each.model_id === chosenModel.value) ??
    document.deployments[0];
  const path = chosen?.stages.length
    ? pathOf(chosen, links, busyShares(chosen.model_id))
    : null;
  return html`<section class="view cluster-view" aria-labelledby="cluster-title">
    <h1 id="cluster-title">Cluster</h1>
    <${Summary} document=${document} machines=${machines} />
    ${document.deployments.length > 0 &&
    html`<${Choice}
      label="Show the path through"
      options=${document.deployments.map((each) => [each.model_id, each.model_id])}
      value=${chosen.model_id}
      onChoose=${(modelId) => {
        chosenModel.value = modelId;
      }}
    />`}
    <${ClusterMap}
      boxes=${boxesOf(document, names)}
      path=${path}
      own=${document.node_id}
    />
    ${chosen && html`<${Model} deployment=${chosen} path=${path} names=${names} />`}
    <${Machines} machines=${machines} names=${names} own=${document.node_id} />
    <${Links} document=${document} links=${links} names=${names} />
    ${document.incompatible.length > 0 &&
    html`<section aria-labelledby="refused-title">
      <h2 id="refused-title">Refused nodes</h2>
      <ul>
        ${document.incompatible.map(
          (each) =>
            html`<li>
              Node ${each.node_id} runs another version of Potluck (wire version
              ${" "}${each.wire_version} instead of ${document.wire_version}). Install the same
              version on every node.
            </li>`,
        )}
      </ul>
    </section>`}
  </section>`;
}

function busyShares(modelId) {
  const recent = samples.value
    .slice(-BUSY_SECONDS)
    .map((sample) => sample.models[modelId]?.stage_busy)
    .filter(Boolean);
  const numStages = recent.at(-1)?.length ?? 0;
  return Array.from({ length: numStages }, (_, stage) => {
    const known = recent.map((each) => each[stage]).filter((each) => typeof each === "number");
    return known.length ? known.reduce((one, other) => one + other, 0) / known.length : null;
  });
}

function Summary({ document, machines }) {
  const states = ["ready", "draining", "silent"]
    .map((state) => [state, document.nodes.filter((node) => node.state === state).length])
    .filter(([, number]) => number > 0)
    .map(([state, number]) => `${number} ${state}`);
  const totals = memoryTotals(machines);
  const hosts =
    machines.length === document.nodes.length ? "" : ` on ${count(machines.length, "machine")}`;
  return html`<p class="summary">
    ${count(document.nodes.length, "node")}${hosts} (${states.join(", ")}),${" "}
    ${count(document.deployments.length, "model")}. Total memory: ${formatBytes(totals.totalBytes)}
    ${" "}(weights ${formatBytes(totals.weights)}, cache ${formatBytes(totals.cache)}, free${" "}
    ${formatBytes(totals.free)}).
  </p>`;
}

const LINE = 18;
const POOL_HEIGHT = 50;
const MAX_UNITS = 3;

function boxHeight(machine) {
  const numUnits = Math.min(machine.units.length, MAX_UNITS + 1);
  return 70 + Math.max(1, machine.pools.length) * POOL_HEIGHT + numUnits * LINE;
}

/** The picture: boxes with text in HTML, arrows between them in SVG. */
function ClusterMap({ boxes, path, own }) {
  const [ref, width] = useWidth(800);
  const { ordered, numOnPath } = inPathOrder(boxes, path);
  const layout = layoutBoxes(ordered, numOnPath, Math.max(width, 240), boxHeight);
  const arrows = layoutArrows(layout.boxes, hopsOf(path));
  return html`<section aria-labelledby="map-title">
    <h2 id="map-title">Nodes and the path of a token</h2>
    <${MemoryLegend} />
    <div class="map" ref=${ref} style=${{ height: `${layout.height}px` }}>
      <svg
        class="map-arrows"
        width=${layout.width}
        height=${layout.height}
        viewBox=${`0 0 ${layout.width} ${layout.height}`}
        aria-hidden="true"
      >
        ${arrows.map((arrow) => html`<${Arrow} arrow=${arrow} />`)}
      </svg>
      <ol class="map-boxes">
        ${layout.boxes.map(
          (box) =>
            html`<${Box}
              key=${box.machine.key}
              box=${box}
              path=${path}
              own=${own}
            />`,
        )}
      </ol>
    </div>
  </section>`;
}

function Arrow({ arrow }) {
  const { hop, label } = arrow;
  if (hop.isGroup) {
    return html`<g class="arrow arrow-group">
      <path d=${arrow.path} />
      <text x=${label.x} y=${label.y} text-anchor=${label.anchor}>together</text>
    </g>`;
  }
  const latency = hop.link
    ? formatSeconds(hop.link.latency_seconds)
    : hop.predictedSeconds === null
      ? ""
      : `≈ ${formatSeconds(hop.predictedSeconds)}`;
  const rate = hop.link ? formatRate(hop.link.bytes_per_second, "B/s") : "";
  return html`<g class=${hop.isReturn ? "arrow arrow-return" : "arrow"}>
    <path d=${arrow.path} />
    <path class="arrow-head" d=${arrow.head} />
    <text x=${label.x} y=${label.y} text-anchor=${label.anchor}>
      ${label.lineBelow || !rate ? latency : `${latency}, ${rate}`}
    </text>
    ${label.lineBelow &&
    rate &&
    html`<text x=${label.x} y=${label.y + label.lineBelow} text-anchor=${label.anchor}>
      ${rate}
    </text>`}
  </g>`;
}

function Box({ box, path, own }) {
  const { machine } = box;
  const place = {
    left: `${box.left}px`,
    top: `${box.top}px`,
    width: `${box.width}px`,
    height: `${box.height}px`,
  };
  const stages = (path?.steps ?? []).filter((step) =>
    step.members.some((member) => machine.nodeIds.includes(member.nodeId)),
  );
  const shown = machine.units.slice(0, MAX_UNITS);
  const numHidden = machine.units.length - shown.length;
  return html`<li
    class=${`box box-${machine.state} ${stages.length > 0 ? "box-on-path" : ""}`}
    style=${place}
  >
    <p class="box-title">
      <strong title=${machine.label}>${machine.label}</strong>
      <${NodeState} state=${machine.state} />
    </p>
    <p class="box-stages">
      ${stages.length > 0
        ? html`<span class="chip">${chipText(stages, machine)}</span>`
        : html`<span class="note">
            ${machine.state === "silent" ? "not heard from lately" : "not on this path"}
          </span>`}
    </p>
    ${machine.pools.map(
      (pool) =>
        html`<div class="box-pool">
          <${MemoryBar} pool=${pool} />
          <p class="box-line" title=${`${pool.label}: ${memoryText(pool)}`}>
            ${formatBytes(pool.free)} free of ${formatBytes(pool.totalBytes)}
            ${pool.label !== "memory"
              ? ` on ${pool.label}`
              : machine.numSharing > 1
                ? `, shared by ${machine.numSharing} nodes`
                : ""}
          </p>
        </div>`,
    )}
    ${shown.map(
      ({ unit }) =>
        html`<p class="box-line" title=${unit.reason || null}>
          ${unit.unit_id}: ${roleText(unit.role)}
        </p>`,
    )}
    ${numHidden > 0 && html`<p class="box-line">and ${count(numHidden, "more unit")}</p>`}
    ${machine.nodeIds.includes(own) && html`<span class="box-own">this node</span>`}
  </li>`;
}

/** "stage 0: 0–25"; of several stages only the numbers, for which there is room. */
function chipText(steps, machine) {
  const numbers = steps
    .flatMap((step) => step.members)
    .filter((member) => machine.nodeIds.includes(member.nodeId))
    .map((member) => member.stage);
  if (numbers.length > 1) return `stages ${numbers.join(", ")}`;
  const [{ startLayer, endLayer }] = steps;
  return `stage ${numbers[0]}${endLayer > startLayer ? `: ${startLayer}–${endLayer - 1}` : ""}`;
}

const ROLES = {
  serves: "serves",
  reserve: "in reserve",
  idle: "idle",
  pending: "not tested yet",
  out: "out",
};

function roleText(role) {
  return ROLES[role] ?? role;
}

function Model({ deployment, path, names }) {
  return html`<section aria-labelledby="path-title">
    <h2 id="path-title">The path of a token through ${deployment.model_id}</h2>
    <p>
      <${ModelState} state=${deployment.state} />${" "}
      ${deployment.reason && html`<span>${deployment.reason}. </span>`}
      <span>
        ${count(deployment.num_layers, "layer")}, coordinated by${" "}
        ${nameOf(names, deployment.epoch.coordinator)}, plan ${deployment.epoch.number}.
      </span>
    </p>
    ${!deployment.has_quorum &&
    html`<p class="warning">
      ⚠ Most of the nodes that knew of this model cannot be reached from here.
    </p>`}
    ${deployment.rebalance_note && html`<p>${deployment.rebalance_note}</p>`}
    <${Speeds} deployment=${deployment} />
    ${path
      ? html`<${TokenPath}
          path=${path}
          numLayers=${deployment.num_layers}
          names=${names}
          heading="h3"
        />`
      : html`<p class="note">No plan is in force.</p>`}
  </section>`;
}

function Speeds({ deployment }) {
  const { prediction, measured } = deployment;
  if (!prediction) return html`<p class="note">The plan was made without predictions.</p>`;
  const margin = prediction.margin;
  const rows = [
    ["Tokens/s, one stream", prediction.tokens_per_second, measured.tokens_per_second],
    ["Time per token", prediction.token_seconds, inverse(measured.tokens_per_second)],
  ];
  const format = [formatNumber, formatSeconds];
  const isSameLoad = measured.num_streams === prediction.num_streams;
  return html`<${Scrolling} label="Predicted and measured speed">
    <table class="figures">
      <thead>
        <tr>
          <th scope="col">Speed</th>
          <th scope="col">predicted (±${formatPercent(margin)})</th>
          <th scope="col">measured</th>
        </tr>
      </thead>
      <tbody>
        ${rows.map(
          ([name, predicted, actual], index) =>
            html`<tr>
              <th scope="row">${name}</th>
              <td>${format[index](predicted)}</td>
              <td>
                ${actual ? format[index](actual) : "not yet"}
                <${Compared} predicted=${predicted} measured=${actual} margin=${margin} />
              </td>
            </tr>`,
        )}
        <tr>
          <th scope="row">Tokens/s, all streams</th>
          <td>
            ${formatNumber(prediction.total_tokens_per_second)} (${prediction.num_streams} streams)
          </td>
          <td>
            ${measured.total_tokens_per_second
              ? `${formatNumber(measured.total_tokens_per_second)} (${count(
                  measured.num_streams,
                  "stream",
                )})`
              : "not yet"}
            ${isSameLoad &&
            html`<${Compared}
              predicted=${prediction.total_tokens_per_second}
              measured=${measured.total_tokens_per_second}
              margin=${margin}
            />`}
          </td>
        </tr>
        <tr>
          <th scope="row">First token, prompt of ${prediction.prompt_tokens}</th>
          <td>${formatSeconds(prediction.first_token_seconds)}</td>
          <td>${firstTokenText(measured)}</td>
        </tr>
      </tbody>
    </table>
  <//>`;
}

/** Not compared with the prediction: these prompts had other lengths, and some requests waited. */
function firstTokenText({ first_token_seconds: seconds, num_first_tokens: number }) {
  if (!number) return "not yet";
  return html`${formatSeconds(seconds)}
    <small class="note">mean of ${count(number, "request")} of any length, including time in the
      queue</small>`;
}

function inverse(value) {
  return value ? 1 / value : null;
}

function Compared({ predicted, measured, margin }) {
  const found = comparison(predicted, measured, margin);
  if (!found) return "";
  return html`<small class=${found.isWithin ? "note" : "warning"}>${found.text}</small>`;
}

function Machines({ machines, names, own }) {
  return html`<section aria-labelledby="machines-title">
    <h2 id="machines-title">Machines and units</h2>
    <ul class="machines">
      ${machines.map(
        (machine) =>
          html`<${Machine} key=${machine.key} machine=${machine} names=${names} own=${own} />`,
      )}
    </ul>
  </section>`;
}

function Machine({ machine, names, own }) {
  const [isOpen, setOpen] = useState(false);
  return html`<li>
    <details open=${isOpen} onToggle=${(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <strong>${machine.label}</strong> <${NodeState} state=${machine.state} />${" "}
        <span class="note">
          ${[machine.description, unitsText(machine)].filter(Boolean).join("; ")}
        </span>
      </summary>
      ${machine.pools.map(
        (pool) =>
          html`<p>
            <strong>${pool.label}</strong>, ${formatBytes(pool.totalBytes)}: ${memoryText(pool)}
          </p>`,
      )}
      ${machine.nodes.map(
        (node) => html`<${NodeDetails} node=${node} names=${names} own=${own} />`,
      )}
    </details>
  </li>`;
}

function unitsText(machine) {
  const numbers = new Map();
  for (const { unit } of machine.units) {
    numbers.set(unit.role, (numbers.get(unit.role) ?? 0) + 1);
  }
  const parts = [...numbers].map(([role, number]) => `${number} ${roleText(role)}`);
  return parts.length ? `${count(machine.units.length, "unit")} (${parts.join(", ")})` : "";
}

function NodeDetails({ node, names, own }) {
  if (node.state === "silent") {
    return html`<p>Node ${node.node_id} has not been heard from lately.</p>`;
  }
  return html`<p>
      Node ${names.get(node.node_id)}${node.node_id === own ? " (this one)" : ""}, id${" "}
      <code>${node.node_id}</code>, address ${node.address}, version ${node.version}.
      Memory for more stages: ${formatBytes(node.available_bytes)} (${node.available_reason}).
    </p>
    <${Scrolling} label=${`Units of ${names.get(node.node_id)}`}>
      <table>
        <thead>
          <tr>
            <th scope="col">Unit</th>
            <th scope="col">Role</th>
            <th scope="col">Reason</th>
            <th scope="col">Usable memory</th>
            <th scope="col">Decodes</th>
            <th scope="col">Prefills</th>
          </tr>
        </thead>
        <tbody>
          ${node.units.map(
            (unit) =>
              html`<tr>
                <th scope="row">
                  ${unit.unit_id}<span class="note block">${unit.description}</span>
                </th>
                <td>${roleText(unit.role)}</td>
                <td class="reason">${unit.reason || "–"}</td>
                <td>${formatBytes(unit.usable_bytes)}</td>
                <td>${figureText(unit.rates.decode_tokens_per_second)}</td>
                <td>${figureText(unit.rates.prefill_tokens_per_second)}</td>
              </tr>`,
          )}
        </tbody>
      </table>
    <//>`;
}

function figureText(figure) {
  return figure.value === null ? "not measured" : `${formatNumber(figure.value)} tokens/s`;
}

function Links({ document, links, names }) {
  const present = document.nodes.filter((node) => node.state !== "silent");
  if (present.length < 2) return null;
  return html`<section aria-labelledby="links-title">
    <h2 id="links-title">Links</h2>
    ${links.size === 0
      ? html`<p>No link has been measured yet.</p>`
      : html`<p class="note">
            Latency one way, and the rate of a large message, from row to column.
          </p>
          <${Scrolling} label="Links between nodes">
            <table class="links">
              <thead>
                <tr>
                  <th scope="col">from \\ to</th>
                  ${present.map((node) => html`<th scope="col">${names.get(node.node_id)}</th>`)}
                </tr>
              </thead>
              <tbody>
                ${present.map(
                  (sender) =>
                    html`<tr>
                      <th scope="row">${names.get(sender.node_id)}</th>
                      ${present.map(
                        (receiver) =>
                          html`<${LinkCell}
                            link=${links.get(`${sender.node_id}>${receiver.node_id}`)}
                            isSelf=${sender === receiver}
                          />`,
                      )}
                    </tr>`,
                )}
              </tbody>
            </table>
          <//>`}
  </section>`;
}

function LinkCell({ link, isSelf }) {
  if (isSelf) return html`<td class="self" aria-label="itself">—</td>`;
  if (!link) return html`<td class="note">not measured</td>`;
  const age = `${linkText(link)}; ${count(link.num_samples, "sample")}, the last ${formatSeconds(
    link.age_seconds,
  )} ago`;
  return html`<td title=${age}>
    ${formatSeconds(link.latency_seconds)}<span class="block"
      >${formatRate(link.bytes_per_second, "B/s")}</span
    >
  </td>`;
}
