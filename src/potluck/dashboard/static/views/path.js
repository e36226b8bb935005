// The way of a token through a deployment or a plan: stages in order, with predicted and measured
// times. Used by the Cluster view and, for plans, by the Models view.

import { html } from "../lib.js";
import { layersLabel, nameOf, shareLabel, stageLabel } from "./cluster_model.js";
import { formatBytes, formatMilliseconds, formatRate, formatSeconds } from "../format.js";
import { Share } from "./parts.js";

const BASES = {
  served: "from steps of this model on this unit",
  measured: "from the test of the unit",
  table: "from a table of devices",
  assumed: "assumed: nothing was measured",
};

/** `heading` is the element of the steps' titles, one level below the title around the path. */
export function TokenPath({ path, numLayers, names, heading }) {
  const times = path.steps
    .flatMap((step) => step.members)
    .flatMap((each) => [each.predicted?.decode_seconds, each.measured?.decode_seconds])
    .filter((each) => each > 0);
  const longest = Math.max(...times, 1e-9);
  return html`<div class="token-path">
    <div class="layer-strip" aria-hidden="true">
      ${path.steps.map(
        (step) =>
          html`<span
            class="layer-part"
            style=${{ flexGrow: Math.max(step.endLayer - step.startLayer, numLayers / 60) }}
          >
            ${step.startLayer}–${step.endLayer - 1}
          </span>`,
      )}
    </div>
    ${path.entry && !path.entry.isLocal && html`<${Hop} hop=${path.entry} names=${names} />`}
    <ol class="steps">
      ${path.steps.map(
        (step) =>
          html`<li key=${step.members[0].stage} class=${step.members.length > 1 ? "group" : ""}>
            <${heading} class="step-title">
              ${capitalized(stageLabel(step))}: ${layersLabel(step, numLayers)}
            <//>
            ${step.members.length > 1 &&
            html`<p class="note">
              ${step.members.length} units hold these layers together and compute at the same time.
            </p>`}
            <div class="members">
              ${step.members.map(
                (member) =>
                  html`<${Member}
                    key=${member.stage}
                    member=${member}
                    longest=${longest}
                    names=${names}
                  />`,
              )}
            </div>
            <${Hop} hop=${step.hop} names=${names} />
          </li>`,
      )}
    </ol>
  </div>`;
}

function capitalized(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function Member({ member, longest, names }) {
  const { predicted, measured } = member;
  return html`<div class="member">
    <p class="member-place">
      <strong>${nameOf(names, member.nodeId)}</strong> <span>${member.unitId}</span>${" "}
      ${member.part && html`<span class="note">${shareLabel(member.part)}</span>`}
    </p>
    <${TimeBar}
      name="predicted"
      seconds=${predicted?.decode_seconds}
      longest=${longest}
      title=${predicted ? BASES[predicted.basis] : ""}
    />
    ${measured &&
    html`<${TimeBar} name="measured" seconds=${measured.decode_seconds} longest=${longest} />`}
    ${member.busy !== null && html`<${Share} value=${member.busy} label="busy" />`}
    ${member.isBottleneck && html`<p class="note">▲ limits the total rate</p>`}
    ${member.slowdown &&
    html`<p class="note warning">
      ⚠ slow: takes ${member.slowdown.toFixed(1)} times as long as it used to
    </p>`}
    <p class="note">
      ${formatBytes(member.numBytes)}: weights ${formatBytes(member.bytes.weights)},
      cache ${formatBytes(member.bytes.cache)}
    </p>
  </div>`;
}

function TimeBar({ name, seconds, longest, title }) {
  const isKnown = seconds !== null && seconds !== undefined;
  return html`<div class=${`time time-${name}`} title=${title || null}>
    <span class="time-name">${name}</span>
    <span class="time-track" aria-hidden="true">
      ${isKnown &&
      html`<span class="time-fill" style=${{ width: `${(100 * seconds) / longest}%` }}></span>`}
    </span>
    <span class="time-value">${isKnown ? formatMilliseconds(seconds) : "not yet"}</span>
  </div>`;
}

function Hop({ hop, names }) {
  if (hop.isLocal) {
    if (hop.isReturn) return null;
    return html`<p class="hop">
      <span aria-hidden="true">↓</span> on the same node${predictedText(hop)}
    </p>`;
  }
  const to = nameOf(names, hop.to);
  return html`<p class="hop">
    <span aria-hidden="true">${hop.isReturn ? "↩" : "↓"}</span>
    ${hop.isReturn ? ` tokens back to ${to}` : ` to ${to}`}: ${linkText(hop.link)}${predictedText(
      hop,
    )}
  </p>`;
}

function predictedText(hop) {
  return hop.predictedSeconds === null
    ? ""
    : `; ${formatSeconds(hop.predictedSeconds)} predicted per step`;
}

/** A link's latency and rate in a few words. */
export function linkText(link) {
  if (!link) return "link not measured";
  const latency = formatSeconds(link.latency_seconds);
  return `${latency} latency, ${formatRate(link.bytes_per_second, "B/s")}`;
}
